"""Files of MIT Kerberos, made by its own programs, and damaged ones; the clock of a real KDC."""

import time

import pytest

from tests.fixtures.kdc import REALM
from yarn_accel.adapters.kerberos_files import (
    clock_of,
    clock_request,
    read_cache,
    read_keytab,
    read_krb5_conf,
)
from yarn_accel.core.site_checks import KeytabKey
from yarn_accel.errors import RemoteProtocolError


def test_a_keytab_tells_whose_keys_it_has(keytabs):
    keys = read_keytab(keytabs["nn"].read_bytes())
    assert {each.principal for each in keys} == {f"nn/m.test@{REALM}", f"rm/other.test@{REALM}"}
    assert {(each.number, each.encryption_type) for each in keys} == {(2, 17), (2, 18)}
    assert "key=" not in repr(keys)


def test_a_hole_and_a_long_number_in_a_keytab():
    entry = bytes.fromhex("0001 0001 52 0001 61 00000001 00000000 02 0012 0002 ffff 00000103")
    data = b"\5\2" + (-4).to_bytes(4, "big", signed=True) + bytes(4) + len(entry).to_bytes(4, "big") + entry
    assert read_keytab(data) == (KeytabKey("a@R", 0x103, 18),)


def test_a_ticket_cache_tells_how_long_its_tickets_live(kdc, keytabs):
    kdc.kinit("alice", keytabs["alice"], "-l", "1h", "-r", "2h", cache="renewable")
    kdc.kinit("alice", keytabs["alice"], "-l", "1h", cache="other")
    (found,) = read_cache((kdc.folder / "renewable").read_bytes())
    (other,) = read_cache((kdc.folder / "other").read_bytes())
    assert (found.client, found.server) == (f"alice@{REALM}", f"krbtgt/{REALM}@{REALM}")
    assert found.ends_s - found.starts_s == 3600
    assert found.renewable_until_s - found.starts_s == 7200
    assert other.renewable_until_s == 0


def test_the_configuration_of_the_library_is_read(kdc):
    found = read_krb5_conf((kdc.folder / "krb5.conf").read_text(), "here")
    assert (found.path, found.default_realm, list(found.kdcs)) == ("here", REALM, [REALM])
    assert found.kdcs[REALM][0].startswith("127.0.0.1:")
    assert found.options["rdns"] == "false"
    nested = "[realms]\nA = {\n kdc = a\n kdc = b:88\n # kdc = c\n auth_to_local_names = {\n}\n}\n"
    assert read_krb5_conf(nested, "").kdcs["A"] == ("a", "b:88")


def error_of_a_kdc(time_text=b"20261128104741Z"):
    stamp = b"\x18" + bytes((len(time_text),)) + time_text
    field = b"\xa4" + bytes((len(stamp),)) + stamp
    sequence = b"\x30" + bytes((len(field),)) + field
    return b"\x7e" + bytes((len(sequence),)) + sequence


def test_the_time_in_a_kdcs_error():
    assert time.gmtime(clock_of(error_of_a_kdc()))[:6] == (2026, 11, 28, 10, 47, 41)
    for wrong in (b"", b"\x6b\x00", error_of_a_kdc(b"20261328104741Z"), b"\x7e\x84\xff\xff\xff\xff"):
        with pytest.raises(RemoteProtocolError):
            clock_of(wrong)
    assert len(clock_request("R" * 200, 7)) > 200


@pytest.fixture(scope="module")
def files(kdc, keytabs):
    kdc.kinit("alice", keytabs["alice"], cache="whole")
    cache = (kdc.folder / "whole").read_bytes()
    return ((read_keytab, keytabs["nn"].read_bytes()), (read_cache, cache), (clock_of, error_of_a_kdc()))


def test_damaged_files_are_refused_in_words(files):
    for read, whole in files:
        for at in range(len(whole)):
            for damaged in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :], whole[:at] + whole[at + 1 :]):
                try:
                    read(damaged)
                except RemoteProtocolError as error:
                    assert len(str(error)) < 200
