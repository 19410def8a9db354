"""Runs in an environment with `xllamacpp`: llama.cpp's own HTTP server for one GGUF file, until its input is closed.

python _peer_llamacpp.py MODEL.gguf PORT THREADS STREAMS
"""

from __future__ import annotations

import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.n_ctx, params.n_parallel, params.use_jinja = 16384, int(sys.argv[4]), True
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
