# Denskit on a CPU.  Build:  docker build -t denskit .     Use:  docker run --rm -v "$PWD:/work" denskit train ...
FROM python:3.12-slim
WORKDIR /source
COPY pyproject.toml README.md LICENSE LICENSES.md ./
COPY src src
# The CPU build of torch first: the default one brings CUDA.
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir . \
    && rm -rf /source
# Kernels are compiled once a machine; keep them with -v denskit-cache:/cache.
ENV NUMBA_CACHE_DIR=/cache
WORKDIR /work
ENTRYPOINT ["denskit"]
CMD ["--help"]
