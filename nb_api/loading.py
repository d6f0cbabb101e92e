"""From a URL, or a configuration, to a database.

Drivers are entry points of the namespace ``heliograph.db_driver``, found by stevedore and by nothing else.  The scheme
of the URL names the driver.
"""

from __future__ import annotations

from oslo_config import cfg

from nb_api import config, notify_config
from nb_api.db_api import DbApi
from nb_api.errors import DbNotFound
from pubsub_api.config import check_group, new_conf
from pubsub_api.errors import DriverNotFound
from pubsub_api.runtime.options import refuse_tls
from pubsub_api.runtime.plugins import Plugins, register_options, split_url, without_password

NAMESPACE = "heliograph.db_driver"

_PLUGINS = Plugins(NAMESPACE, DbApi, "database driver")  # type: ignore[type-abstract]  # only its subclasses are made


def open_db(
    url: str | None = None,
    conf: cfg.ConfigOpts | None = None,
    *,
    with_outbox: bool = True,
    must_exist: bool = False,
) -> DbApi:
    """A database, connected and ready; made when there is none yet.  Close it when done.

    ``conf`` may be any parsed oslo.config object: what it lacks is registered on it.  ``url`` None takes ``[db] url``.
    ``must_exist`` is for readers: a path with a typing error shall not become an empty database.  Raises what
    `build_db` and `DbApi.initialize` raise, and DbNotFound.
    """
    db = build_db(url, conf, with_outbox=with_outbox)
    try:
        if must_exist:
            check_exists(db)
        db.initialize()
    except BaseException:
        db.close()
        raise
    return db


def check_exists(db: DbApi) -> None:
    """Raises DbNotFound when there is no such database, and DbUnavailable.  Makes nothing."""
    if not db.exists():
        place = without_password(f"{db.url.scheme}://{db.url.netloc}{db.url.path}")
        raise DbNotFound(f"there is no database at {place}, and reading does not make one")


def build_db(url: str | None = None, conf: cfg.ConfigOpts | None = None, *, with_outbox: bool = True) -> DbApi:
    """The same, constructed and not yet connected.

    Raises what `load_db_driver` raises, and InvalidConfig when the URL or an option cannot be used.
    """
    conf = new_conf() if conf is None else conf
    conf.register_opts(config.OPTIONS, group=config.GROUP)
    check_group(conf, config.GROUP, config.OPTIONS, others=notify_config.NOTIFY_OPTIONS)
    given = conf[config.GROUP].url if url is None else url
    parts = split_url(given, what="database", example="sqlite:///path/file.db", has_hosts=True)
    driver_class = load_db_driver(parts.scheme)
    register_options(conf, driver_class, driver_class.options)
    for group, options in driver_class.options.items():
        check_group(conf, group, options)
    if not driver_class.uses_tls:
        refuse_tls(conf, config.GROUP, parts.scheme)
    db = driver_class(conf, parts)
    db.with_outbox = with_outbox
    return db


def load_db_driver(name: str) -> type[DbApi]:
    """The driver class installed under ``name``.  Imports its module and the library behind it.

    Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra when the library is
    missing or cannot be imported, and DriverError when the driver itself is broken.
    """
    try:
        return _PLUGINS.load(name)
    except DriverNotFound as error:
        if name not in ("http", "https"):
            raise
        raise DriverNotFound(f"{error}. An etcd is etcd://host:port/prefix, with TLS etcds://") from None
