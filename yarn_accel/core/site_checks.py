"""Troubles of a Hadoop site that keep its users out: found in facts, each with its place and its cure.

`SiteFacts` holds what was read and asked, `troubles_of` judges it. A refusal by a service or by the Kerberos
library is a `ProbeResult` whose code says which trouble it is; the checks add what other facts say of it.
Settings that will fail later are found without an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

#: Kerberos takes no message whose sender's clock differs more.
MAX_CLOCK_DIFFERENCE_S = 300.0
_WARN_CLOCK_DIFFERENCE_S = 60.0
_SOON_S = 3600.0
#: What Java's Kerberos, a part of each JVM of a job's client, reads its realm from.
_JAVA_KRB5 = "-Djava.security.krb5."
#: Encryption types that today's KDCs refuse (RFC 8429, RFC 6649), by their numbers.
WEAK_TYPES = {1: "des-cbc-crc", 2: "des-cbc-md4", 3: "des-cbc-md5", 16: "des3-cbc-sha1", 23: "arcfour-hmac"}
ENCRYPTION_TYPES = {
    **WEAK_TYPES,
    17: "aes128-cts-hmac-sha1-96",
    18: "aes256-cts-hmac-sha1-96",
    19: "aes128-cts-hmac-sha256-128",
    20: "aes256-cts-hmac-sha384-192",
}
STANDBY = "standby"
"""The code of an answer of a server that is not the active one of its service."""
RESOURCEMANAGER, NAMENODE, TICKET, KEYTAB, KDC, HDFS, TOKEN = (
    "ResourceManager",
    "NameNode",
    "ticket",
    "keytab",
    "KDC",
    "HDFS",
    "token",
)
"""Who gives a `ProbeResult`."""


# ---- facts


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The answer of one service, or of the Kerberos library.

    Attributes:
        asked: who, such as `NAMENODE`.
        place: its address, or the file that was used.
        code: of the refusal; empty: it answered well.
        message: of the refusal, or what there is to say of a good answer.
        cure: of the refusal.
    """

    asked: str
    place: str
    code: str = ""
    message: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class KeytabKey:
    """A key of a keytab, without the key itself."""

    principal: str
    number: int
    encryption_type: int


@dataclass(frozen=True, slots=True)
class CachedTicket:
    """A ticket of a ticket cache, without its keys.

    Attributes:
        renewable_until_s: Unix seconds; 0: it cannot be renewed.
    """

    client: str
    server: str
    starts_s: int
    ends_s: int
    renewable_until_s: int
    encryption_type: int


@dataclass(frozen=True, slots=True)
class TicketCache:
    """Where tickets are looked for.

    Attributes:
        name: such as ``FILE:/tmp/krb5cc_1000``.
        owner: uid of the file; None: there is no file, or it is of another type.
        is_keytab: the file holds keys, no tickets.
        tickets: as far as it could be read.
    """

    name: str
    owner: int | None = None
    is_keytab: bool = False
    tickets: tuple[CachedTicket, ...] = ()

    @property
    def kind(self) -> str:
        """Type of the cache."""
        kind, colon, _ = self.name.partition(":")
        return kind.upper() if colon else "FILE"

    def own(self) -> CachedTicket | None:
        """The ticket by which others are asked for."""
        return next((each for each in self.tickets if each.server.startswith("krbtgt/")), None)


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A delegation token of HDFS in the file of ``HADOOP_TOKEN_FILE_LOCATION``."""

    owner: str
    service: str
    ends_s: float


@dataclass(frozen=True, slots=True)
class Krb5Conf:
    """The realm and the options of ``krb5.conf``; the keys of options in lower case."""

    path: str = "/etc/krb5.conf"
    default_realm: str = ""
    kdcs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """All that the checks look at.

    Attributes:
        now_s: Unix seconds here.
        uid: of this process.
        conf_dir: of Hadoop's configuration.
        properties: of its ``*-site.xml`` files.
        krb5: of this machine.
        krb5_config: KRB5_CONFIG, by which another file than /etc/krb5.conf was named; or empty.
        cache: where tickets are looked for; None: the cluster has no Kerberos.
        keytab: a file with keys that was given; or empty.
        keys: those in it.
        tokens: that this process would use.
        jvm_options: of job clients.
        proxy_user: HADOOP_PROXY_USER; or empty.
        clocks: server -> its time minus ours, in seconds.
        answers: of those who were asked.
    """

    now_s: float = 0.0
    uid: int = 0
    conf_dir: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    krb5: Krb5Conf = field(default_factory=Krb5Conf)
    krb5_config: str = ""
    cache: TicketCache | None = None
    keytab: str = ""
    keys: tuple[KeytabKey, ...] = ()
    tokens: tuple[HeldToken, ...] = ()
    jvm_options: tuple[str, ...] = ()
    proxy_user: str = ""
    clocks: Mapping[str, float] = field(default_factory=dict)
    answers: tuple[ProbeResult, ...] = ()

    def setting(self, key: str) -> str:
        """The value of a property without blanks around it; empty where it is not set."""
        return self.properties.get(key, "").strip()

    def names(self, key: str) -> list[str]:
        """The names in a property that is a list."""
        return [each.strip() for each in self.setting(key).split(",") if each.strip()]

    @property
    def is_kerberos(self) -> bool:
        """Whether the cluster has Kerberos."""
        return self.setting("hadoop.security.authentication").lower() == "kerberos"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble.

    Attributes:
        code: a short stable word.
        text: the trouble.
        place: the file, variable, address or principal where it is.
        cure: what to do.
        is_warning: nothing fails by it yet, or not everything does.
    """

    code: str
    text: str
    place: str
    cure: str
    is_warning: bool = False


def troubles_of(facts: SiteFacts) -> tuple[Trouble, ...]:
    """Return the troubles of a site, those that keep everything from working first; each once."""
    checks: list[Callable[[SiteFacts], Iterator[Trouble]]] = [_of_answers, *_OF_ALL]
    if facts.is_kerberos:
        checks += _OF_KERBEROS
    found: dict[tuple[str, str], Trouble] = {}
    for check in checks:
        for trouble in check(facts):
            key = (trouble.code, trouble.text)
            same = found.get(key)
            if same is not None and trouble.place not in same.place.split(", "):
                trouble = replace(same, place=f"{same.place}, {trouble.place}")
            found[key] = trouble
    return tuple(sorted(found.values(), key=lambda trouble: trouble.is_warning))


# ---- what was answered


def _of_answers(facts: SiteFacts) -> Iterator[Trouble]:
    working = {answer.asked for answer in facts.answers if not answer.code}
    passed_over = {STANDBY, ""}
    if any(answer.asked == KDC and answer.code for answer in facts.answers):
        passed_over.add("kerberos-no-kdc")
    if any(_resourcemanager_ids(facts)):
        passed_over.add("config")
    for answer in facts.answers:
        if (answer.asked == KDC and answer.code) or answer.code not in passed_over:
            yield replace(_explained(facts, answer), is_warning=answer.asked in working)
    for service in (RESOURCEMANAGER, NAMENODE):
        asked = [each for each in facts.answers if each.asked == service]
        if asked and all(each.code == STANDBY for each in asked):
            tool = "yarn rmadmin" if service == RESOURCEMANAGER else "hdfs haadmin"
            yield Trouble(
                "no-active-server",
                f"every {service} is on standby, so none answers",
                ", ".join(each.place for each in asked),
                f"look at ZooKeeper and the failover controllers; `{tool} -getAllServiceState`",
            )


def _explained(facts: SiteFacts, answer: ProbeResult) -> Trouble:
    """The trouble that a refusal stands for, with what other facts tell of it."""
    place = f"{answer.asked} {answer.place}"
    refused = re.search(r"User: (\S+) is not allowed to impersonate (\S+)", answer.message)
    if refused:
        return _impersonation(place, refused[1], refused[2])
    if facts.proxy_user and answer.asked == HDFS and "disconnected" in answer.message:
        # The native client does not say why. The NameNode took the same caller's login just before.
        own = facts.cache.own() if facts.cache else None
        return _impersonation(place, own.client if own else "the caller", facts.proxy_user)
    if _CLOSED in answer.message and (stranger := _of_another_realm(facts, answer.asked)):
        return Trouble(
            "kerberos-account",
            f"the server ends the connection at the end of the login of {stranger}, and says nothing: so "
            "does one without a rule for that realm (its log: No rules applied)",
            place,
            "add a rule for that realm to hadoop.security.auth_to_local of NameNode and ResourceManager",
        )
    explain = _EXPLAINED.get(answer.code)
    more = explain(facts) if explain is not None else ""
    text = answer.message.removeprefix(f"{answer.place}: ") + (f" ({more})" if more else "")
    return Trouble(answer.code, text, place, answer.cure or "see the server's log")


#: What our side says of a server that ends the connection before the login is over.
_CLOSED = "closed during the login"


def _of_another_realm(facts: SiteFacts, service: str) -> str:
    """The owner of the ticket, where the service's realm is another one; else empty."""
    ticket = facts.cache.own() if facts.cache else None
    key = {RESOURCEMANAGER: "yarn.resourcemanager.principal", NAMENODE: "dfs.namenode.kerberos.principal"}
    realm = facts.setting(key.get(service, "")).rpartition("@")[2]
    is_stranger = ticket is not None and realm and ticket.client.rpartition("@")[2] != realm
    return ticket.client if ticket is not None and is_stranger else ""


def _impersonation(place: str, caller: str, other: str) -> Trouble:
    name = re.split("[/@]", caller)[0]
    return Trouble(
        "impersonation",
        f"{caller} may not act for {other}",
        place,
        f"set hadoop.proxyuser.{name}.hosts and hadoop.proxyuser.{name}.groups on the NameNode and the "
        "ResourceManager, or unset HADOOP_PROXY_USER",
    )


def _ticket_ended(facts: SiteFacts) -> str:
    ticket = facts.cache.own() if facts.cache else None
    return f"that of {ticket.client} ended {_age(facts.now_s - ticket.ends_s)} ago" if ticket else ""


def _keys_there(facts: SiteFacts) -> str:
    principals = sorted({key.principal for key in facts.keys})
    return f"it has keys of {', '.join(principals)}" if principals else ""


def _key_numbers(facts: SiteFacts) -> str:
    numbers = sorted({f"{key.principal} number {key.number}" for key in facts.keys})
    return f"its keys: {', '.join(numbers)}" if numbers else ""


def _owner_of_cache(facts: SiteFacts) -> str:
    cache = facts.cache
    if cache is None:
        return ""
    owner = "" if cache.owner is None else f" of uid {cache.owner}"
    return f"a cache of type {cache.kind}{owner}, and this is uid {facts.uid}"


def _is_keytab(facts: SiteFacts) -> str:
    return "the file is a keytab" if facts.cache and facts.cache.is_keytab else ""


def _kdcs_tried(facts: SiteFacts) -> str:
    realm = facts.krb5.default_realm
    asked = facts.krb5.kdcs.get(realm, ())
    return f"realm {realm or 'unknown'}, KDC {', '.join(asked) or 'none named'}, by {facts.krb5.path}"


def _name_rules(facts: SiteFacts) -> str:
    wrong = [
        f"{key} is not false"
        for key in ("rdns", "dns_canonicalize_hostname")
        if facts.krb5.options.get(key, "true").lower() not in ("false", "no", "off", "n", "f", "0")
    ]
    return f"in {facts.krb5.path} {' and '.join(wrong)}" if wrong else ""


def _differences(facts: SiteFacts) -> str:
    return "; ".join(f"the clock of {who} is {_off(by_s)}" for who, by_s in facts.clocks.items())


def _types_there(facts: SiteFacts) -> str:
    types = sorted({key.encryption_type for key in facts.keys})
    permitted = facts.krb5.options.get("permitted_enctypes", "the library's default")
    return f"the keytab has {_named_types(types)}; permitted_enctypes: {permitted}" if types else ""


#: Code of a refusal -> what other facts tell of it.
_EXPLAINED: Mapping[str, Callable[[SiteFacts], str]] = {
    "kerberos-ticket-expired": _ticket_ended,
    "kerberos-keytab": _keys_there,
    "kerberos-stale-key": _key_numbers,
    "kerberos-cache-unreadable": _owner_of_cache,
    "kerberos-cache-damaged": _is_keytab,
    "kerberos-no-kdc": _kdcs_tried,
    "kerberos-server-not-found": _name_rules,
    "kerberos-clock": _differences,
    "kerberos-encryption": _types_there,
}


# ---- what settings and files say, with Kerberos


def _ends_soon(facts: SiteFacts) -> Iterator[Trouble]:
    ticket = facts.cache.own() if facts.cache else None
    if facts.cache is None or ticket is None or ticket.ends_s <= facts.now_s:
        return
    left_s = ticket.ends_s - facts.now_s
    if not ticket.renewable_until_s and not facts.keytab:
        yield Trouble(
            "ticket-not-renewable",
            f"the ticket of {ticket.client} ends in {_age(left_s)} and cannot be renewed",
            facts.cache.name,
            "kinit -r 7d, or a keytab (KRB5_CLIENT_KTNAME)",
            is_warning=True,
        )
    elif left_s < _SOON_S and not facts.keytab:
        yield Trouble(
            "ticket-ends-soon",
            f"the ticket of {ticket.client} ends in {_age(left_s)}",
            facts.cache.name,
            "kinit -R, or kinit",
            is_warning=True,
        )


def _cache_that_java_cannot_read(facts: SiteFacts) -> Iterator[Trouble]:
    if facts.cache is not None and facts.cache.kind not in ("FILE", "MEMORY"):
        yield Trouble(
            "cache-not-for-java",
            f"Java reads ticket caches of type FILE alone, and this one is {facts.cache.kind}: `streaming` "
            "and `hdfs` find no ticket",
            facts.cache.name,
            "kinit -c FILE:/path, and let KRB5CCNAME name it",
            is_warning=True,
        )


def _clocks(facts: SiteFacts) -> Iterator[Trouble]:
    if any(answer.code == "kerberos-clock" for answer in facts.answers):
        return  # that refusal says it
    for who, by_s in facts.clocks.items():
        if abs(by_s) > _WARN_CLOCK_DIFFERENCE_S:
            yield Trouble(
                "clock-difference",
                f"the clock of {who} is {_off(by_s)}; Kerberos refuses more than "
                f"{MAX_CLOCK_DIFFERENCE_S / 60:.0f} minutes",
                who,
                "set this machine's clock (chronyc tracking, timedatectl)",
                is_warning=abs(by_s) <= MAX_CLOCK_DIFFERENCE_S,
            )


def _weak_keys(facts: SiteFacts) -> Iterator[Trouble]:
    types = {key.encryption_type for key in facts.keys}
    if types and types <= WEAK_TYPES.keys():
        yield Trouble(
            "weak-keys",
            f"the keytab has keys of types that KDCs refuse today: {_named_types(sorted(types))}",
            facts.keytab,
            "export it again with aes256-cts and aes128-cts (ktadd -e)",
        )


_PRIVILEGES_KEY = "yarn.resourcemanager.proxy-user-privileges.enabled"


def missing_privileges(properties: Mapping[str, str]) -> str:
    """Why a later attempt of a master with a keytab may not start; empty: the settings do not say so.

    Args:
        properties: of the site, as this machine has them.
    """
    if properties.get(_PRIVILEGES_KEY, "").strip().lower() == "true":
        return ""
    return (
        f"{_PRIVILEGES_KEY} is not true here: YARN starts a later attempt of the master with the tokens of "
        "the start, and when these have ended (after 7 days by default) no node can fetch its files"
    )


def _keytab_without_privileges(facts: SiteFacts) -> Iterator[Trouble]:
    why = missing_privileges(facts.properties) if facts.keytab else ""
    if why:
        yield Trouble(
            "keytab-without-privileges",
            why,
            f"{facts.conf_dir}/yarn-site.xml",
            "set it for the ResourceManager, and hadoop.proxyuser.yarn.hosts and .groups on the NameNode "
            "(yarn: the ResourceManager's user there); this matters to who starts with --keytab alone",
            is_warning=True,
        )


_PRINCIPAL_KEYS = ("dfs.namenode.kerberos.principal", "yarn.resourcemanager.principal")


def _principals(facts: SiteFacts) -> Iterator[Trouble]:
    for key in _PRINCIPAL_KEYS:
        value, pattern = facts.setting(key), facts.setting(f"{key}.pattern")
        if not value and not pattern:
            yield Trouble(
                "principal-missing",
                f"{key} is not set, so no server is trusted",
                facts.conf_dir,
                "let HADOOP_CONF_DIR name the cluster's own configuration",
            )
            continue
        host = value.partition("/")[2].partition("@")[0]
        if re.fullmatch(r"[0-9.]+|.*:.*", host):
            yield Trouble(
                "principal-with-address",
                f"{key} has an address, {value}, and a KDC knows names",
                facts.conf_dir,
                "write it as service/_HOST@REALM, and give the host a name",
            )


def _realm_of_java(facts: SiteFacts) -> Iterator[Trouble]:
    """Java reads no KRB5_CONFIG."""
    has_option = any(option.startswith(_JAVA_KRB5) for option in facts.jvm_options)
    if facts.krb5_config and facts.krb5_config != "/etc/krb5.conf" and not has_option:
        yield Trouble(
            "java-realm-unknown",
            f"KRB5_CONFIG names {facts.krb5_config}, which no JVM reads: `streaming` says "
            '"Can\'t get Kerberos realm"',
            "client_jvm_options, HADOOP_OPTS",
            f"add {_JAVA_KRB5}conf={facts.krb5_config} to client_jvm_options in yarn-accel-site.yaml",
            is_warning=True,
        )


def _realm_without_kdc(facts: SiteFacts) -> Iterator[Trouble]:
    conf = facts.krb5
    looks_up = conf.options.get("dns_lookup_kdc", "true").lower() in ("true", "yes", "on", "y", "t", "1")
    if not conf.default_realm and not facts.answers:
        yield Trouble(
            "kerberos-realm-unknown",
            f"{conf.path} names no default_realm",
            conf.path,
            "let KRB5_CONFIG name the site's krb5.conf",
        )
    elif conf.default_realm and not conf.kdcs.get(conf.default_realm) and not looks_up:
        yield Trouble(
            "kerberos-realm-unknown",
            f"{conf.path} names no KDC of {conf.default_realm}, and dns_lookup_kdc is false",
            conf.path,
            "let KRB5_CONFIG name the site's krb5.conf",
        )


_OF_KERBEROS: tuple[Callable[[SiteFacts], Iterator[Trouble]], ...] = (
    _ends_soon,
    _cache_that_java_cannot_read,
    _clocks,
    _weak_keys,
    _keytab_without_privileges,
    _principals,
    _realm_of_java,
    _realm_without_kdc,
)


# ---- tokens, name services, several masters


def _tokens(facts: SiteFacts) -> Iterator[Trouble]:
    for token in facts.tokens:
        if token.ends_s <= facts.now_s:
            yield Trouble(
                "token-expired",
                f"the HDFS token of {token.owner} for {token.service} ended "
                f"{_age(facts.now_s - token.ends_s)} ago: its longest life is over",
                "HADOOP_TOKEN_FILE_LOCATION",
                "start again; for weeks: with a keytab",
            )


def _default_file_system(facts: SiteFacts) -> Iterator[Trouble]:
    value = facts.setting("fs.defaultFS")
    scheme, _, rest = value.partition("://")
    authority = rest.partition("/")[0]
    services = facts.names("dfs.nameservices")
    if scheme == "viewfs":
        yield Trouble(
            "federated-default",
            f"fs.defaultFS is {value}, a table of several name services, which yarn-accel does not read",
            f"{facts.conf_dir}/core-site.xml",
            f"write hdfs://NAME/PATH in URIs and in `environment: {{staging_uri: ...}}`; names: "
            f"{', '.join(services) or 'dfs.nameservices has none'}",
        )
    elif scheme != "hdfs" or not authority:
        yield Trouble(
            "default-file-system",
            f"fs.defaultFS is {value or 'not set'}",
            f"{facts.conf_dir}/core-site.xml",
            "let it name the cluster's HDFS: hdfs://HOST:PORT or hdfs://NAME of dfs.nameservices",
        )
    elif services and ":" not in authority and authority not in services:
        yield Trouble(
            "unknown-name-service",
            f"fs.defaultFS names {authority}, and dfs.nameservices has {', '.join(services)}",
            f"{facts.conf_dir}/hdfs-site.xml",
            "let both name the same service, or add the other one's settings",
        )
    elif len(services) > 1:
        others = ", ".join(each for each in services if each != authority)
        yield Trouble(
            "several-name-services",
            f"there are several name services; a URI without a name means {authority}",
            f"{facts.conf_dir}/core-site.xml",
            f"write hdfs://NAME/PATH for what lies in {others}",
            is_warning=True,
        )


def _name_services(facts: SiteFacts) -> Iterator[Trouble]:
    for service in facts.names("dfs.nameservices"):
        place = f"{facts.conf_dir}/hdfs-site.xml"
        ids = facts.names(f"dfs.ha.namenodes.{service}")
        for each in ids:
            key = f"dfs.namenode.rpc-address.{service}.{each}"
            if not facts.setting(key):
                yield Trouble(
                    "namenode-address-missing",
                    f"{key} is not set, and dfs.ha.namenodes.{service} names {each}",
                    place,
                    f"set {key} to HOST:PORT",
                )
        key = f"dfs.client.failover.proxy.provider.{service}"
        if ids and not facts.setting(key):
            yield Trouble(
                "proxy-provider-missing",
                f"{key} is not set: Java clients take {service} for a host, and say UnknownHostException",
                place,
                f"set {key} to org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider",
                is_warning=True,
            )


def _resourcemanager_ids(facts: SiteFacts) -> Iterator[Trouble]:
    prefix = "yarn.resourcemanager."
    if facts.setting(f"{prefix}ha.enabled").lower() != "true":
        return
    place = f"{facts.conf_dir}/yarn-site.xml"
    ids = facts.names(f"{prefix}ha.rm-ids")
    if not ids:
        yield Trouble(
            "resourcemanager-ids-missing",
            f"{prefix}ha.enabled is true, and {prefix}ha.rm-ids names none",
            place,
            f"set {prefix}ha.rm-ids, and {prefix}hostname.ID for each",
        )
    for each in ids:
        if not facts.setting(f"{prefix}hostname.{each}") and not facts.setting(f"{prefix}address.{each}"):
            yield Trouble(
                "resourcemanager-address-missing",
                f"{prefix}ha.rm-ids names {each}, and neither hostname.{each} nor address.{each} is set",
                place,
                f"set {prefix}hostname.{each}",
            )


_OF_ALL: tuple[Callable[[SiteFacts], Iterator[Trouble]], ...] = (
    _tokens,
    _default_file_system,
    _name_services,
    _resourcemanager_ids,
)


# ---- words


def _age(seconds: float) -> str:
    """A length of time in the unit that fits.

    >>> [_age(each) for each in (5, 600, 7200, 200000)]
    ['5 s', '10 min', '2 h', '2 d']
    """
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s or (seconds >= size_s and unit == "min"):
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _off(by_s: float) -> str:
    return f"{_age(abs(by_s))} {'ahead of' if by_s > 0 else 'behind'} ours"


def _named_types(types: Sequence[int]) -> str:
    return ", ".join(ENCRYPTION_TYPES.get(each, f"type {each}") for each in types)
