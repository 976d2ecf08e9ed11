{{/* What all pods have in common. The list is of the root and the rest of the pod's needs. */}}
{{- define "stagetree.pod" -}}
terminationGracePeriodSeconds: {{ add (int .Values.settings.STAGETREE_STOP_SECONDS) 30 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "stagetree.container" -}}
image: {{ .Values.image | quote }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
envFrom: [{configMapRef: {name: {{ .Release.Name }}}}, {secretRef: {name: {{ .Values.secret }}}}]
{{- end }}

{{- define "stagetree.labels" -}}
app.kubernetes.io/name: stagetree
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
