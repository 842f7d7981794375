"""A master with a keytab renews its application's tokens, at services that take real Kerberos logins."""

import asyncio
import contextlib
import time
from collections import Counter

import pytest

from tests.fixtures.kdc import REALM, secure_properties
from tests.unit.adapters.hadoop_rpc.fake_hadoop import FakeHadoop, Refusal
from tests.unit.master.fake_yarn import FakeYarn, rig
from yarn_accel.adapters.hadoop_rpc import (
    Patience,
    ResourceManager,
    RpcSettings,
    Token,
    TokenFile,
    read_token_file,
    write_token_file,
)
from yarn_accel.adapters.hadoop_rpc.methods import (
    CancelDelegationTokenResponse,
    GetDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from yarn_accel.client.writable import encode_number
from yarn_accel.errors import AccelError, ConfigError, StorageError
from yarn_accel.master.config import SOME_MANAGERS, parse_config
from yarn_accel.master.credentials import MasterCredentials
from yarn_accel.master.token_renewal import KeytabLogin, TokenRenewal

DAY_S = 86_400.0
BEGIN_S = 1_700_000_000.0
INVALID = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
OLD_RM = Token(b"first", b"p", "RM_DELEGATION_TOKEN", "rm")


def hdfs_token(issued_s, password=b"p", days=7, renewer=b"rm"):
    names = (b"alice@" + REALM.encode(), renewer, b"")
    texts = b"".join(encode_number(len(each)) + each for each in names)
    numbers = [int(issued_s * 1000), int((issued_s + days * DAY_S) * 1000), 7, 2]
    identifier = b"\0" + texts + b"".join(map(encode_number, numbers))
    return Token(identifier, password, "HDFS_DELEGATION_TOKEN", "")


class Scene:
    """A NameNode and a ResourceManager that give tokens of 7 days, good for a day unless prolonged.

    Attributes:
        now_s: the time of all of them.
        asked: how often a service was asked for what.
        published: what containers can read.
        is_published: whether HDFS takes it.
        cancelled: the password of tokens that nobody prolongs any more.
        has_more_hdfs: whether the NameNode is also a further HDFS, by two other names.
    """

    def __init__(self, folder, keytabs):
        self.now_s = BEGIN_S
        self.asked = Counter()
        self.renewers = set()
        self.published = []
        self.is_published = True
        self.cancelled = b""
        self.services = {
            name: FakeHadoop(
                {
                    "getDelegationToken": lambda request, name=name: self._give(name, request),
                    "renewDelegationToken": lambda request, name=name: self._prolong(name, request),
                    "cancelDelegationToken": lambda request, name=name: self._cancel(name),
                },
                tokens=[],
                keytab=keytabs[name],
                service=name,
                protections=4,
            )
            for name in ("rm", "nn")
        }
        self.place = folder / "container_tokens"
        self.first = TokenFile({"nn": hdfs_token(BEGIN_S), "rm": OLD_RM}, {"control": b"kept"})
        self.place.write_bytes(write_token_file(self.first))
        self.credentials = MasterCredentials(
            OLD_RM, b"c" * 32, delegation=OLD_RM, hdfs={"nn": self.first.tokens["nn"]}
        )
        self.keytab = keytabs["alice"]
        self.has_more_hdfs = False

    def _give(self, name, request):
        self.asked[f"{name} gives"] += 1
        self.renewers.add(request.renewer)
        count = self.asked[f"{name} gives"]
        password = b"of %d" % count
        token = hdfs_token(self.now_s, password)
        return GetDelegationTokenResponse(
            token if name == "nn" else Token(b"rm", password, "RM_DELEGATION_TOKEN", "")
        )

    def _prolong(self, name, request):
        if request.token.password == self.cancelled:
            raise Refusal(INVALID, "token (x) can't be found in cache")
        self.asked[f"{name} prolongs"] += 1
        return RenewDelegationTokenResponse(int((self.now_s + DAY_S) * 1000))

    def _cancel(self, name):
        self.asked[f"{name} cancels"] += 1
        return CancelDelegationTokenResponse()

    def settings(self, rm, nn):
        """Of a master with the keytab, by the addresses of both services."""
        principal = f"alice@{REALM}"
        hadoop = secure_properties(rm, nn)
        hadoop |= {"dfs.ha.namenodes.ns2": "a", "dfs.namenode.rpc-address.ns2.a": str(nn)}
        servers = [f"hdfs://localhost:{nn.port}", "hdfs://ns2"] if self.has_more_hdfs else []
        return {
            "keytab": str(self.keytab),
            "principal": principal,
            "hadoop": hadoop,
            "hdfs_servers": servers,
        }

    def publish(self, content):
        if not self.is_published:
            raise StorageError("HDFS is away")
        self.published.append(content)

    @contextlib.asynccontextmanager
    async def renewal(self, *, is_first_attempt=True):
        async with self.services["rm"] as rm, self.services["nn"] as nn:
            config = parse_config({**SOME_MANAGERS, **self.settings(rm.address, nn.address)})
            login = KeytabLogin.of(config, RpcSettings(), {"HADOOP_TOKEN_FILE_LOCATION": str(self.place)})
            manager = ResourceManager(
                login.site.resourcemanagers(), login.kerberos, login.settings, Patience(total_s=0.0)
            )
            try:
                yield TokenRenewal(
                    login,
                    manager,
                    self.credentials,
                    self.publish,
                    is_first_attempt=is_first_attempt,
                    clock=lambda: self.now_s,
                )
            finally:
                await manager.close()


@pytest.fixture
def scene(tmp_path, keytabs):
    return Scene(tmp_path, keytabs)


async def test_the_first_tokens_serve_until_seven_tenths_of_their_life(scene):
    async with scene.renewal() as renewal:
        for days in (0.0, 4.8):
            scene.now_s = BEGIN_S + days * DAY_S
            await renewal.step()
        assert not scene.asked
        assert renewal.ends_s == BEGIN_S + 7 * DAY_S
        scene.now_s = BEGIN_S + 4.95 * DAY_S
        await renewal.step()
    assert scene.asked == {name: 1 for name in ("nn gives", "nn prolongs", "rm gives", "rm prolongs")}
    assert scene.renewers == {f"alice@{REALM}"}, "the ResourceManager prolongs the first ones alone"
    own = read_token_file(scene.place.read_bytes())
    assert own.secrets == {"control": b"kept"}
    (published,) = scene.published
    assert read_token_file(published) == TokenFile(own.tokens)
    assert {each.password for each in own.tokens.values()} == {b"of 1"}
    server = read_token_file(scene.credentials.of_container("server", "w1"))
    assert [(each.kind, each.password) for each in server.tokens.values()] == [
        ("HDFS_DELEGATION_TOKEN", b"of 1")
    ]
    agent = read_token_file(scene.credentials.of_container("agent", "w1"))
    assert agent.of_kind("RM_DELEGATION_TOKEN").password == b"of 1"


@pytest.mark.parametrize(
    ("second", "due_after_days"),
    [({"days": 2}, 1.5), ({"days": 9}, 5.0), ({"renewer": b""}, 0.0)],
    ids=["shorter", "longer", "prolonged by nobody"],
)
async def test_the_first_token_of_several_hdfs_to_end_says_when(scene, second, due_after_days):
    scene.credentials = MasterCredentials(
        OLD_RM,
        b"c" * 32,
        delegation=OLD_RM,
        hdfs={"nn": hdfs_token(BEGIN_S), "ns2": hdfs_token(BEGIN_S, **second)},
    )
    async with scene.renewal() as renewal:
        if due_after_days:
            scene.now_s = BEGIN_S + (due_after_days - 0.2) * DAY_S
            await renewal.step()
            assert not scene.asked
        scene.now_s = BEGIN_S + due_after_days * DAY_S
        await renewal.step()
    assert scene.asked["nn gives"] == 1


async def test_own_tokens_are_prolonged_every_day_and_replaced_after_five(scene):
    async with scene.renewal(is_first_attempt=False) as renewal:
        await renewal.step()
        assert renewal.ends_s == BEGIN_S + DAY_S
        while scene.asked["nn gives"] < 2:
            scene.now_s += 0.1 * DAY_S
            assert scene.now_s < renewal.ends_s, "never without a good token"
            await renewal.step()
    assert scene.now_s == pytest.approx(BEGIN_S + 4.9 * DAY_S, abs=0.11 * DAY_S)
    assert len(scene.published) == 2
    assert 6 <= scene.asked["rm prolongs"] <= 9


async def test_containers_find_a_new_token_by_the_names_of_its_namenode_too(scene):
    """Those of a second HDFS, which is the first one by another name here, and of the first."""
    scene.has_more_hdfs = True
    scene.now_s += 60
    async with scene.renewal(is_first_attempt=False) as renewal:
        await renewal.step()
        address = scene.services["nn"].address
        names = {f"localhost:{address.port}", str(address), "ha-hdfs:ns2"}
    assert scene.asked["nn gives"] == scene.asked["nn prolongs"] == 2
    server = read_token_file(scene.credentials.of_container("server", "w1"))
    for tokens in (server, read_token_file(scene.published[0]), read_token_file(scene.place.read_bytes())):
        found = {each.service for each in tokens.tokens.values() if each.kind == "HDFS_DELEGATION_TOKEN"}
        assert found == names


async def test_a_later_attempt_gives_new_tokens_to_containers_of_its_predecessor_at_once(scene):
    """Nobody has prolonged those that the predecessor asked for."""
    async with scene.renewal(is_first_attempt=False) as renewal:
        assert renewal.ends_s == 0.0
        await renewal.step()
    assert len(scene.published) == 1


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_later_attempt_has_its_tokens_before_it_starts_containers(scene, is_away):
    """Those of the start may have ended; what cannot be done now does not hold it up."""

    def refusing(_):
        raise Refusal("org.apache.hadoop.security.AccessControlException", "not now")

    if is_away:
        scene.services["nn"].handlers["getDelegationToken"] = refusing
    async with scene.renewal(is_first_attempt=False) as renewal:
        await renewal.begin()
    found = read_token_file(scene.credentials.of_container("server", "w1"))
    assert {each.password for each in found.tokens.values()} == ({b"p"} if is_away else {b"of 1"})


@pytest.mark.parametrize("is_first_attempt", [True, False])
async def test_hdfs_is_used_only_when_a_token_can_be(scene, is_first_attempt):
    """A later attempt comes with the tokens of the start, which may have ended."""
    async with scene.renewal(is_first_attempt=is_first_attempt) as renewal:
        work = asyncio.create_task(renewal.work())
        await renewal.until_usable()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert len(scene.published) == (0 if is_first_attempt else 1)


async def test_what_cannot_be_done_now_is_done_later(scene):
    def refusing(_):
        raise Refusal("org.apache.hadoop.security.AccessControlException", "not now")

    give = scene.services["nn"].handlers["getDelegationToken"]
    async with scene.renewal(is_first_attempt=False) as renewal:
        scene.services["nn"].handlers["getDelegationToken"] = refusing
        with pytest.raises(AccelError):
            await renewal.step()
        assert scene.asked["rm cancels"] == 1, "a token of one service alone is of no use"
        assert scene.place.read_bytes() == write_token_file(scene.first)
        scene.services["nn"].handlers["getDelegationToken"] = give
        scene.is_published = False
        with pytest.raises(StorageError):
            await renewal.step()
        scene.is_published = True
        await renewal.step()
        assert scene.asked["nn gives"] == 1, "the same tokens are published, not others"
    assert len(scene.published) == 1


async def test_why_tokens_are_not_renewed_is_known_while_it_is_so(scene):
    def refusing(_):
        raise Refusal("org.apache.hadoop.security.AccessControlException", "not this service")

    scene.now_s += 5 * DAY_S
    scene.services["rm"].handlers["getDelegationToken"] = refusing
    async with scene.renewal() as renewal:
        work = asyncio.create_task(renewal.work())
        while not renewal.problem:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert "not this service" in renewal.problem
    assert renewal.ends_s == BEGIN_S + 7 * DAY_S, "the present ones are good until then"


async def test_tokens_that_somebody_cancelled_are_replaced(scene):
    async with scene.renewal(is_first_attempt=False) as renewal:
        await renewal.step()
        scene.cancelled = b"of 1"
        scene.now_s += 0.75 * DAY_S
        await renewal.step()
    assert {each.password for each in read_token_file(scene.place.read_bytes()).tokens.values()} == {b"of 2"}
    assert len(scene.published) == 2


async def test_the_end_of_the_application_is_the_end_of_its_tokens(scene):
    async with scene.renewal() as renewal:
        await renewal.finish()
        assert not scene.asked, "the ResourceManager ends the first ones"
        scene.now_s += 5 * DAY_S
        await renewal.step()
        await renewal.finish()
        assert (scene.asked["nn cancels"], scene.asked["rm cancels"]) == (1, 1)
        for _ in range(3):
            scene.now_s += 5 * DAY_S
            await renewal.step()
        await renewal.finish()
    assert (scene.asked["nn cancels"], scene.asked["rm cancels"]) == (3, 3), "its own and those before"


async def test_a_whole_master_renews_and_its_containers_start_with_the_newest(scene, keytabs, tmp_path):
    scene.now_s = time.time()
    yarn = FakeYarn({"a1": "/r1", "w1": "/r1"})
    yarn.delegated = {"nn": scene.first.tokens["nn"], "rm": OLD_RM}
    yarn.clients.handlers.update(scene.services["rm"].handlers)
    yarn.clients.tokens, yarn.clients.keytab, yarn.clients.protections = [], keytabs["rm"], 4
    yarn.next_attempt()
    async with yarn, scene.services["nn"] as nn:
        settings = scene.settings(yarn.clients.address, nn.address)
        async with rig(yarn, tmp_path, staging_uri=f"file://{tmp_path}/app", **settings) as all_:
            await all_.until("the agents run", lambda: len(yarn.nodes["w1"].runs("agent")) == 1)
            (run,) = yarn.nodes["w1"].runs("agent")
            tokens = read_token_file(run.launch.credentials).tokens.values()
            assert {(each.kind, each.password) for each in tokens} == {
                ("HDFS_DELEGATION_TOKEN", b"of 1"),
                ("RM_DELEGATION_TOKEN", b"of 1"),
            }
            await all_.until("bindings, as an operator", lambda: all_.bound() == {"w1": "a1"})
            assert all_.state()["service"]["tokens_end_s"] == pytest.approx(scene.now_s + DAY_S, abs=1)
            assert all_.problems() == []
            published = tmp_path / "app" / "tokens"
            assert published.stat().st_mode & 0o777 == 0o600
            assert (
                read_token_file(published.read_bytes()).of_kind("HDFS_DELEGATION_TOKEN").password == b"of 1"
            )
            await all_.master.cancel_tokens()
    assert set(yarn.clients.users) == {f"alice@{REALM}"}
    assert (scene.asked["nn cancels"], scene.asked["rm cancels"]) == (1, 1)


def test_a_keytab_that_is_not_there_ends_the_master_at_once(tmp_path):
    config = parse_config({**SOME_MANAGERS, "keytab": str(tmp_path / "none"), "principal": "alice"})
    with pytest.raises(ConfigError, match=r"keytab .*none: it is not on this node"):
        KeytabLogin.of(config, RpcSettings(), {})
