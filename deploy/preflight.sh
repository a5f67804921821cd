#!/bin/sh
# Checks for system packages that Freshet requires, before the installation.
#
#   deploy/preflight.sh             prints the path of the Python to use; or what is missing and the
#                                   command that installs it, and exits with 1
#   deploy/preflight.sh --packages  prints the names of missing packages, if any
#
# PYTHON=/path/to/python selects the interpreter.
# If MONGO_URI or FRESHET_MONGOD is set, or mongod is on the PATH, the libraries of the bundled server
# are not required.

set -u

packages=""   # missing packages, by their Debian and Ubuntu names
python=""

add() {
    packages="$packages${packages:+ }$1"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

fail() {
    printf 'missing: %s\n' "$1" >&2
    exit 1
}

# Run it, because a pyenv shim is on the PATH even if its version is not installed.
is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Debian and Ubuntu ship ensurepip in a separate package.
makes_venvs() {
    "$1" -c 'import venv, ensurepip' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
        is_recent "$1" || fail "Python 3.11 or newer: PYTHON=$PYTHON does not run or is older"
    else
        set -- python3.13 python3.12 python3.11 python3
    fi
    recent=""
    for candidate in "$@"; do
        is_recent "$candidate" || continue
        recent=${recent:-$candidate}
        if makes_venvs "$candidate"; then
            python=$(command -v "$candidate")
            return
        fi
    done
    if [ -n "$recent" ]; then
        add "$(venv_package "$recent")"
    else
        add_python
    fi
}

# python3-venv is for the system's default version; other versions have their own packages.
venv_package() {
    version='import sys; print("%d.%d" % sys.version_info[:2])'
    wanted=$("$1" -c "$version")
    own=$(/usr/bin/python3 -c "$version" 2>/dev/null)
    if [ "$wanted" = "$own" ]; then
        echo python3-venv
    else
        echo "python$wanted-venv"
    fi
}

add_python() {
    release=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}")
    case $release in
        "ubuntu 22.04") add "python3.11 python3.11-venv" ;;
        "ubuntu 20.04" | "debian 11" | "debian 10")
            fail "Python 3.11 or newer, which this system does not package: install it, then make PYTHON=/path/to/python3" ;;
        *) add "python3 python3-venv" ;;
    esac
}

check_tools() {
    has git || add git
    has make || add make
}

# The bundled mongod runs on Linux x86-64 and needs two system libraries.
check_libraries() {
    [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || return 0
    [ -z "${MONGO_URI:-}${FRESHET_MONGO_URI:-}${FRESHET_MONGOD:-}" ] || return 0
    ! has mongod || return 0
    ! grep -qsE '^(MONGO_URI|FRESHET_MONGO_URI|FRESHET_MONGOD)=.' .env || return 0
    libraries=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null)
    [ -n "$libraries" ] || return 0
    has_library libcurl.so.4 || add libcurl4
    has_library libssl.so.3 || add libssl3
}

has_library() {
    printf '%s\n' "$libraries" | grep -F "$1 (" | grep -qF x86-64
}

find_python
check_tools
check_libraries

if [ "${1:-}" = --packages ]; then
    [ -z "$packages" ] || printf '%s\n' "$packages"
    exit 0
fi
if [ -z "$packages" ]; then
    printf '%s\n' "$python"
    exit 0
fi
has apt-get || fail "$packages (Debian package names; install the equivalents of your system)"
sudo="sudo "
[ "$(id -u)" != 0 ] || sudo=""
fail "$packages -> ${sudo}apt-get install -y $packages"
