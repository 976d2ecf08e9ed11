#!/bin/bash
# Submit as many jobs as there is work for, and no more than NODES nodes. For cron on the login node, every few minutes:
#
#   */5 * * * * slurm-scale.sh workers.sh 16
#
# workers.sh: from `stagetree workers --slurm --nodes 1 --gpus-per-node GPUS`. STAGETREE_URL and STAGETREE_TOKEN, of the scope
# `read`, are in the environment. Jobs end at their time limits once no study runs; until then, cancel those that are idle.
set -euo pipefail
script=$1 most=${2:-8} gpus=${GPUS:-8}
said=$(curl -fsS --max-time 20 -H "Authorization: Bearer $STAGETREE_TOKEN" "$STAGETREE_URL/api/v1/demand")
wanted=$(sed -E 's/.*"wanted": *([0-9]+).*/\1/' <<<"$said")
nodes=$(((wanted + gpus - 1) / gpus))
have=$(squeue --me --noheader --name=stagetree --format=%D | awk '{n += $1} END {print n + 0}') # also those that wait
for ((; have < nodes && have < most; have++)); do
  sbatch "$script"
done
