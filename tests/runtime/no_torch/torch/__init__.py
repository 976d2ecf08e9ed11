raise ImportError("torch is broken here")
