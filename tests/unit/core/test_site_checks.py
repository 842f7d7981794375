"""Each trouble of a site is found in facts, and reported with its place and its cure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from yarn_accel.core.site_checks import (
    HDFS,
    KDC,
    KEYTAB,
    NAMENODE,
    RESOURCEMANAGER,
    STANDBY,
    TICKET,
    CachedTicket,
    HeldToken,
    KeytabKey,
    Krb5Conf,
    ProbeResult,
    SiteFacts,
    TicketCache,
    troubles_of,
)

NOW_S = 1_800_000_000
PRINCIPALS = {
    "hadoop.security.authentication": "kerberos",
    "fs.defaultFS": "hdfs://nn.site:8020",
    "dfs.namenode.kerberos.principal": "nn/_HOST@R",
    "yarn.resourcemanager.principal": "rm/_HOST@R",
}
OWN = CachedTicket("alice@R", "krbtgt/R@R", NOW_S - 60, NOW_S + 36000, NOW_S + 86400, 18)
KRB5 = Krb5Conf("/etc/krb5.conf", "R", {"R": ("kdc.site:88",)}, {"rdns": "false"})
CACHE = TicketCache("FILE:/tmp/c", 1000, tickets=(OWN,))
GOOD = SiteFacts(NOW_S, 1000, "/conf", PRINCIPALS, KRB5, cache=CACHE)
HA = {
    "fs.defaultFS": "hdfs://ns1",
    "dfs.nameservices": "ns1",
    "dfs.ha.namenodes.ns1": "nn1,nn2",
    "dfs.namenode.rpc-address.ns1.nn1": "a:8020",
    "dfs.namenode.rpc-address.ns1.nn2": "b:8020",
    "dfs.client.failover.proxy.provider.ns1": "x.ConfiguredFailoverProxyProvider",
    "yarn.resourcemanager.ha.enabled": "true",
    "yarn.resourcemanager.ha.rm-ids": "rm1,rm2",
    "yarn.resourcemanager.hostname.rm1": "a",
    "yarn.resourcemanager.address.rm2": "b:8032",
}


def refused(code, message="refused", asked=TICKET, place="FILE:/tmp/c"):
    return ProbeResult(asked, place, code, message, "as the library says")


def ticket(**changes):
    return replace(GOOD, cache=replace(CACHE, tickets=(replace(OWN, **changes),)))


def site(**changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return replace(GOOD, properties={**PRINCIPALS, **named})


def ha(**changes):
    """A site without Kerberos; None takes a property away."""
    properties = {**HA, **{key.replace("__", "."): value for key, value in changes.items()}}
    return SiteFacts(
        NOW_S, conf_dir="/conf", properties={k: v for k, v in properties.items() if v is not None}
    )


def test_a_site_without_trouble_has_none():
    answers = (ProbeResult(TICKET, "FILE:/tmp/c"), ProbeResult(NAMENODE, "nn.site:8020"))
    assert troubles_of(replace(GOOD, answers=answers)) == ()
    assert troubles_of(ha()) == ()
    standby = (ProbeResult(NAMENODE, "a:8020", STANDBY), ProbeResult(NAMENODE, "b:8020"))
    assert troubles_of(replace(ha(), answers=standby)) == ()


KEYS = (KeytabKey("alice@R", 3, 23), KeytabKey("bob@R", 4, 1))
ANSWERED = (
    (refused("kerberos-no-ticket", "no Kerberos ticket in FILE:/tmp/c"), "no Kerberos ticket in FILE:/tmp/c"),
    (refused("kerberos-cache-unreadable"), "a cache of type FILE of uid 1000, and this is uid 1000"),
    (refused("kerberos-keytab", asked=KEYTAB), "it has keys of alice@R, bob@R"),
    (refused("kerberos-stale-key", asked=KEYTAB), "its keys: alice@R number 3, bob@R number 4"),
    (refused("kerberos-server-not-found"), "in /etc/krb5.conf dns_canonicalize_hostname is not false"),
    (refused("kerberos-other-server", "has the principal A, expected is B"), "expected is B"),
    (refused("kerberos-clock"), "the clock of KDC kdc.site is 10 min ahead of ours"),
    (refused("kerberos-no-kdc", asked=KDC), "realm R, KDC kdc.site:88, by /etc/krb5.conf"),
    (refused("kerberos-encryption"), "the keytab has des-cbc-crc, arcfour-hmac; permitted_enctypes: "),
    (refused("kerberos-account", "No rules applied to alice@OTHER"), "No rules applied to alice@OTHER"),
    (refused("token-cancelled", "can't be found in cache", NAMENODE), "can't be found in cache"),
)


@pytest.mark.parametrize(("answer", "expected"), ANSWERED, ids=[each.code for each, _ in ANSWERED])
def test_a_refusal_says_what_is_known_of_it(answer, expected):
    facts = replace(GOOD, answers=(answer,), keys=KEYS, clocks={"KDC kdc.site": 600.0})
    found = {each.code: each for each in troubles_of(facts)}[answer.code]
    assert expected in found.text
    assert found.place == f"{answer.asked} {answer.place}"
    assert found.cure == "as the library says"
    assert not found.is_warning


@pytest.mark.parametrize(("realm", "code"), [("OTHER", "kerberos-account"), ("R", "unavailable")])
def test_a_server_without_a_rule_for_a_realm_says_nothing(realm, code):
    answer = refused("unavailable", "no connection to nn:8020: closed during the login", NAMENODE)
    facts = replace(ticket(client=f"alice@{realm}"), answers=(answer,))
    (found,) = troubles_of(facts)
    assert found.code == code
    assert ("of alice@OTHER, and" in found.text) is (realm == "OTHER")


def test_an_expired_ticket_names_its_end():
    facts = ticket(ends_s=NOW_S - 7200)
    (found,) = troubles_of(replace(facts, answers=(refused("kerberos-ticket-expired"),)))
    assert found.text == "refused (that of alice@R ended 2 h ago)"


@pytest.mark.parametrize(("asked", "code"), [(NAMENODE, "kerberos-account"), (HDFS, "storage")])
def test_who_may_not_act_for_others_learns_the_two_keys(asked, code):
    text = "AuthorizationException: User: svc/h@R is not allowed to impersonate bob"
    (found,) = troubles_of(replace(GOOD, answers=(refused(code, text, asked),)))
    assert found.code == "impersonation"
    assert found.text == "svc/h@R may not act for bob"
    assert "hadoop.proxyuser.svc.hosts and hadoop.proxyuser.svc.groups" in found.cure


def test_the_native_client_does_not_say_that_acting_for_others_is_refused():
    lost = refused("storage", "RPC listener disconnected", HDFS)
    facts = replace(GOOD, proxy_user="bob", answers=(lost,))
    assert [each.text for each in troubles_of(facts)] == ["alice@R may not act for bob"]
    assert [each.code for each in troubles_of(replace(facts, proxy_user=""))] == ["storage"]


def test_a_dead_kdc_is_one_trouble_and_one_trouble_at_two_places_is_one():
    dead = refused("kerberos-no-kdc", asked=KDC, place="kdc.site:88")
    later = [refused("kerberos-no-kdc", "another text", asked) for asked in (RESOURCEMANAGER, NAMENODE)]
    (found,) = troubles_of(replace(GOOD, answers=(dead, *later)))
    assert found.place == "KDC kdc.site:88"
    both = [refused("kerberos-account", asked=asked, place="p") for asked in (RESOURCEMANAGER, NAMENODE)]
    (found,) = troubles_of(replace(GOOD, answers=tuple(both)))
    assert found.place == "ResourceManager p, NameNode p"


PRIVILEGED = site(**{"yarn.resourcemanager.proxy-user-privileges.enabled": "true"})
SETTINGS = (
    ("ticket-not-renewable", ticket(renewable_until_s=0), "kinit -r", True),
    ("ticket-ends-soon", ticket(ends_s=NOW_S + 600), "kinit -R", True),
    ("cache-not-for-java", replace(GOOD, cache=TicketCache("KEYRING:persistent:0")), "kinit -c FILE:", True),
    ("clock-difference", replace(GOOD, clocks={"KDC k": -400.0}), "chronyc", False),
    ("clock-difference", replace(GOOD, clocks={"KDC k": 90.0}), "chronyc", True),
    ("weak-keys", replace(PRIVILEGED, keys=KEYS, keytab="/k"), "aes256-cts", False),
    ("keytab-without-privileges", replace(GOOD, keytab="/k"), "hadoop.proxyuser.yarn.hosts", True),
    ("principal-missing", site(dfs__namenode__kerberos__principal=""), "HADOOP_CONF_DIR", False),
    ("principal-with-address", site(yarn__resourcemanager__principal="rm/10.0.0.1@R"), "_HOST", False),
    ("java-realm-unknown", replace(GOOD, krb5_config="/my/krb5.conf"), "client_jvm_options", True),
    (
        "kerberos-realm-unknown",
        replace(GOOD, krb5=Krb5Conf("/k", "R", {}, {"dns_lookup_kdc": "false"})),
        "KRB5_CONFIG",
        False,
    ),
    ("kerberos-realm-unknown", replace(GOOD, krb5=Krb5Conf("/k")), "KRB5_CONFIG", False),
    ("token-expired", replace(GOOD, tokens=(HeldToken("bob@R", "nn:8020", NOW_S - 60),)), "keytab", False),
    ("default-file-system", site(fs__defaultFS="file:///"), "hdfs://", False),
    ("federated-default", site(fs__defaultFS="viewfs://all", dfs__nameservices="ns1,ns2"), "ns1, ns2", False),
    ("unknown-name-service", ha(fs__defaultFS="hdfs://ns2"), "same service", False),
    ("several-name-services", ha(dfs__nameservices="ns1,ns2"), "hdfs://NAME/PATH", True),
    ("proxy-provider-missing", ha(dfs__client__failover__proxy__provider__ns1=None), "Configured", True),
    ("resourcemanager-ids-missing", ha(**{"yarn.resourcemanager.ha.rm-ids": ""}), "rm-ids", False),
    ("resourcemanager-address-missing", ha(yarn__resourcemanager__address__rm2=None), "hostname.rm2", False),
    ("namenode-address-missing", ha(**{"dfs.namenode.rpc-address.ns1.nn2": None}), "HOST:PORT", False),
)


@pytest.mark.parametrize(
    ("code", "facts", "cure", "is_warning"), SETTINGS, ids=[each[0] for each in SETTINGS]
)
def test_a_wrong_setting_is_found_before_anybody_is_asked(code, facts, cure, is_warning):
    (found,) = troubles_of(facts)
    assert found.code == code
    assert cure in found.cure
    assert found.place
    assert found.is_warning is is_warning


@pytest.mark.parametrize(("service", "tool"), [(NAMENODE, "hdfs haadmin"), (RESOURCEMANAGER, "yarn rmadmin")])
def test_two_servers_on_standby_are_one_trouble(service, tool):
    answers = tuple(ProbeResult(service, place, STANDBY) for place in ("a:1", "b:1"))
    (found,) = troubles_of(replace(ha(), answers=answers))
    assert (found.code, found.place) == ("no-active-server", "a:1, b:1")
    assert tool in found.cure


def test_one_server_of_two_that_is_away_is_a_warning():
    answers = (ProbeResult(NAMENODE, "a:1"), refused("unavailable", asked=NAMENODE, place="b:1"))
    (found,) = troubles_of(replace(ha(), answers=answers))
    assert found.is_warning


def test_what_keeps_everything_from_working_stands_first():
    facts = replace(ticket(renewable_until_s=0), clocks={"KDC k": 4000.0})
    assert [each.is_warning for each in troubles_of(facts)] == [False, True]
