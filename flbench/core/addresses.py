"""Addresses of servers and databases without their secrets.

An address such as `http://user:password@host` is neither written to a file nor printed as it is:
`redact` replaces the secrets by `***`.
"""

import re
from typing import Final

MASK: Final = "***"
HTTP: Final = ("http", "https")

_SCHEME: Final = r"\b(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
_USER: Final = re.compile(_SCHEME + r'(?P<user>[^\s"/?#]+)@')
# A password with characters that must be encoded. SQLAlchemy takes it, others read it as a path.
_RAW_PASSWORD: Final = re.compile(_SCHEME + r'(?P<user>[^\s":/?#@]*:[^\s"@]*)@')
_PORT: Final = re.compile(r"[^:]*:\d*[/?#]")
_QUERY: Final = re.compile(
    r"(?P<key>[?&;][\w.-]*(?:passw(?:or)?d|pwd|secret|token|api_?key|access_?key)[\w.-]*=)"
    r"[^\s\"'&;#]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return a text in which the secrets of all addresses are replaced by `***`.

    Secrets are the user and password before the host, a user alone if the address is one of HTTP
    (which may be a token), and parameters named like a password, secret, token or key.

    Args:
        text: An address, or any text that contains addresses.

    >>> redact("http://ann:x7@host:5000, postgresql://ann@host/runs?password=x7")
    'http://***@host:5000, postgresql://ann@host/runs?password=***'
    """
    if "://" not in text:
        return text
    text = _RAW_PASSWORD.sub(_raw_password, _USER.sub(_user, text))
    return _QUERY.sub(rf"\g<key>{MASK}", text)


def redact_address(address: str) -> str:
    """Return an address without its secrets, like `redact`; its password may contain spaces."""
    without_spaces = re.sub(r'[\s"]', "_", address)
    redacted = redact(without_spaces)
    return address if redacted == without_spaces else redacted


def is_redacted(address: str) -> bool:
    """Return whether an address lacks its secrets, because `redact` replaced them."""
    return MASK in address


def scheme(address: str) -> str:
    """Return the scheme of an address in lower case, such as `https`; "" if it has none."""
    match = re.match(_SCHEME, address)
    return match["scheme"].lower() if match else ""


def is_same(one: str, other: str) -> bool:
    """Return whether two addresses name the same place, whatever their users and passwords are.

    >>> is_same("http://ann:x7@Host:5000/", "HTTP://***@host:5000")
    True
    >>> is_same("http://host:5000", "https://host:5000")
    False
    """
    return _place(one) == _place(other)


def _place(address: str) -> str:
    """Return an address without its secrets, with the scheme and the host in lower case."""
    bare = without_user(redact_address(address.strip()))
    beginning, sign, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{beginning.lower()}{sign}{host.lower()}{slash}{path}".rstrip("/")


def is_of_this_machine(address: str) -> bool:
    """Return whether an address of MLflow's store is a path, a `file:` URI or an SQLite database.

    >>> [is_of_this_machine(one) for one in ("sqlite:///a/b.db", "mlruns", "file:///a")]
    [True, True, True]
    >>> [is_of_this_machine(one) for one in ("file://host/a", "databricks", "postgresql:///a")]
    [False, False, False]
    """
    beginning, colon, rest = address.partition(":")
    if not colon:
        return beginning not in ("databricks", "databricks-uc", "uc")
    if "?" in rest or "#" in rest:
        return False  # a database may load plugins that the parameters name
    if beginning == "file":
        return not rest.startswith("//") or rest.startswith(("///", "//localhost/"))
    return beginning == "sqlite" and rest.startswith("///")


def without_user(address: str) -> str:
    """Return an address without the user and the password before its host.

    >>> without_user("https://ann:x7@host/mlflow")
    'https://host/mlflow'
    """
    return _USER.sub(lambda match: f"{match['scheme']}://", address, count=1)


def _user(match: re.Match[str]) -> str:
    """Return the beginning of an address, up to its `@`, with a mask for its user."""
    is_secret = ":" in match["user"] or match["scheme"].lower() in HTTP
    return f"{match['scheme']}://{MASK if is_secret else match['user']}@"


def _raw_password(match: re.Match[str]) -> str:
    """Return the beginning of an address whose password is not encoded, with a mask for its user.

    `http://host:5000/x@y` has no password and is returned as it is.
    """
    is_path = match["scheme"].lower() in HTTP and _PORT.match(match["user"])
    return match[0] if is_path else f"{match['scheme']}://{MASK}@"
