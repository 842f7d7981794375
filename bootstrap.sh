#!/bin/sh
# Installs what this machine lacks and puts the wheel of this project into .venv. Called by the Makefile.
#
#   ./bootstrap.sh EXTRAS        e.g. ./bootstrap.sh yarn,bench
#
# As root on Debian or Ubuntu the missing system packages are installed with apt-get. An ordinary user is told the
# one line to run; what only the namespace mode needs (iproute2) does not stop him: loopback mode does without.
set -eu
cd "$(dirname "$0")"
extras=${1:-yarn,bench}
say() { printf '%s\n' "$*" >&2; }
install_packages() {
    apt-get -q update >&2 && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@" >&2
}

# --- system packages -------------------------------------------------------------------------------------------
# As yarn_accel.hadoop.java looks for it: JAVA_HOME, PATH, or where distributions put a JDK 17; 17 or newer.
has_java() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java 2>/dev/null || true)" \
        /usr/lib/jvm/*17*/bin/java; do
        [ -x "$java" ] || continue
        major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
        if [ "${major:-0}" -ge 17 ]; then return 0; fi
    done
    return 1
}
has_browser() {
    command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 ||
        command -v google-chrome >/dev/null 2>&1
}
# Only tests need it, and some distributions have it elsewhere or not at all: so it is tried once.
want_browser() {
    has_browser && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && say "installing: chromium" &&
        install_packages chromium && return
    say "going on without Chromium: the tests of the pages in a browser will be skipped"
}
python=${PYTHON:-python3}
needed=""    # nothing works without these
useful=""    # only the namespace mode needs these
for_tests="" # only tests need these: a compiler and a KDC
"$python" -c 'import ensurepip, venv' 2>/dev/null || needed="$needed python3-venv"
has_java || needed="$needed openjdk-17-jdk-headless"
command -v mvn >/dev/null 2>&1 || needed="$needed maven"
PATH="$PATH:/usr/sbin:/sbin"
command -v ip >/dev/null 2>&1 && command -v tc >/dev/null 2>&1 || useful="$useful iproute2"
case ",$extras," in *,dev,*)
    command -v cc >/dev/null 2>&1 || for_tests=" gcc libc6-dev"
    for pair in krb5kdc:krb5-kdc kadmin.local:krb5-admin-server kinit:krb5-user; do
        command -v "${pair%:*}" >/dev/null 2>&1 || for_tests="$for_tests ${pair#*:}"
    done ;;
esac
missing="$needed$useful$for_tests"
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing:$missing"
        # shellcheck disable=SC2086  # a list of package names
        install_packages $missing
    else
        say "missing on this machine, install with:  sudo apt-get install -y --no-install-recommends$missing"
        if [ -n "$needed" ]; then exit 3; fi
        say "going on without$useful$for_tests: loopback mode needs none of it"
    fi
fi
"$python" - <<'PY' || exit 3
import sys
if sys.version_info < (3, 10):
    sys.exit(f"python3 is {sys.version.split()[0]}, 3.10 or newer is needed: set PYTHON=/path/to/a/newer/python3")
PY

# --- the virtual environment and the wheel -----------------------------------------------------------------------
[ -x .venv/bin/python ] || { say "creating .venv"; "$python" -m venv .venv; }
pip=".venv/bin/python -m pip --disable-pip-version-check"
# Compiling takes longer than all else here, and Python compiles what it imports: of half of the files nobody ever does.
stamp=".venv/.installed-$(printf %s "$extras" | tr , -)"
if [ ! -e "$stamp" ] || [ setup.cfg -nt "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    case ",$extras," in *,dev,*) want_browser ;; esac
    say "installing the wheel of this project with [$extras] into .venv"
    rm -rf build
    $pip install --quiet --no-compile --upgrade ".[$extras]" >&2
    rm -rf build
    touch "$stamp" .venv/.wheel
elif [ -n "$(find yarn_accel torque_sched hadoop_conf -newer .venv/.wheel -type f ! -name '*.pyc' -print -quit)" ]; then
    say "the sources are newer than the installed wheel: installing it again"
    rm -rf build
    $pip install --quiet --no-compile --no-deps --force-reinstall . >&2
    rm -rf build
    touch .venv/.wheel
fi
