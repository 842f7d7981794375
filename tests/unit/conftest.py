"""A realm for the tests of Kerberos logins; they skip where this machine has no KDC to run."""

import os

import pytest

from tests.fixtures.kdc import missing_programs, running_kdc


@pytest.fixture(scope="module")
def kdc(tmp_path_factory):
    """A realm, and this process inside it."""
    if missing := missing_programs():
        pytest.skip(f"MIT Kerberos is not installed ({missing}): apt-get install krb5-kdc krb5-user")
    folder = tmp_path_factory.mktemp("kdc")
    with running_kdc(folder) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def keytabs(kdc):
    """Keytabs of a caller (alice, bob) and of the services rm and nn at m.test."""
    made = {"alice": ("alice", "bob"), "rm": ("rm/m.test",), "nn": ("nn/m.test", "rm/other.test")}
    return {name: kdc.add(*principals, keytab=f"{name}.keytab") for name, principals in made.items()}


@pytest.fixture
def ticket(kdc, keytabs, monkeypatch):
    """A fresh ticket of alice, in the default cache."""
    cache = kdc.kinit("alice", keytabs["alice"])
    monkeypatch.setenv("KRB5CCNAME", cache)
    return os.environ["KRB5CCNAME"]
