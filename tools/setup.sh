# Sourced by tools/demo, tools/test and .ci/run: gives them the environment they need.
#
#   root      the repository's root
#   python    its interpreter, .venv/bin/python
#   set_up EXTRA...   makes .venv if there is none, and installs diskreplay and these extras into it,
#                     editable, if pyproject.toml or the extras changed since the last time
#
# Quiet unless there is something to do, or it fails. PYTHON=... names the interpreter to begin with.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$root/.venv/bin/python"
unset PYTHONHOME PYTHONPATH # another project's would shadow what is installed here
# Bytecode is kept, also where that is switched off: scripts start many processes. pip makes none, which
# would take over a minute: most modules are never imported.
unset PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX

_stop() {
    printf '%s\n' "$@" >&2
    exit 2
}

_is_usable() { # Python 3.11 or later, and able to make an environment?
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

_find_python() {
    local candidate old=""
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
        if _is_usable "$candidate"; then
            echo "$candidate"
            return
        fi
        # What is wrong with the first one that is there is worth telling.
        if [[ -z "$old" ]] && command -v "$candidate" >/dev/null; then
            old="$candidate is $("$candidate" --version 2>&1 | head -n 1)"
        fi
    done
    _stop "diskreplay needs Python 3.11 or later with its venv module; ${old:-no python3 was found}." \
        "Install one (on Debian and Ubuntu venv is a package of its own: python3-venv)," \
        "or name one: PYTHON=/path/to/python3.12 $0"
}

_make_venv() {
    local base
    base="$(_find_python)" || exit
    # --clear: what is there was cut short, or its interpreter is gone.
    "$base" -m venv --clear "$root/.venv" || _stop "$base could not make $root/.venv"
}

_is_current() { # is all that is asked for installed? Needs the stamp: line 1 the project, 2 the extras
    [[ -r "$stamp" ]] || return
    local project extras extra
    { read -r project && read -r extras; } <"$stamp" || return
    [[ "$project" == "$1" && -x "$python" ]] || return
    for extra in "${@:2}"; do
        [[ " $extras " == *" $extra "* ]] || return
    done
}

_wanted_extras() { # those asked for and those installed before, so that scripts do not take turns
    {
        printf '%s\n' "$@"
        if [[ -r "$stamp" ]]; then sed -n 2p "$stamp" | tr ' ' '\n'; fi
    } | sort -u
}

set_up() {
    local stamp="$root/.venv/.diskreplay" log="$root/.venv/.diskreplay.log" project extras
    # The path too: an editable install of a repository that was moved points to nowhere.
    project="$(cksum <"$root/pyproject.toml") $root"
    _is_current "$project" "$@" && return
    if command -v flock >/dev/null; then # two scripts at once: the second waits, then finds it done
        exec 9<"$root/pyproject.toml"
        flock 9
    fi
    if ! _is_current "$project" "$@"; then
        echo "Setting up $root/.venv (the first time takes a minute or two) ..." >&2
        "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || _make_venv
        extras="$(_wanted_extras "$@" | paste -sd ' ' -)"
        rm -f "$stamp"
        PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$python" -m pip install \
            --no-input --no-compile --editable "$root[${extras// /,}]" >"$log" 2>&1 ||
            _stop "$(tail -n 25 "$log")" "Installing diskreplay[${extras// /,}] failed; all of it: $log"
        printf '%s\n' "$project" "$extras" >"$stamp"
    fi
    if command -v flock >/dev/null; then exec 9<&-; fi
}
