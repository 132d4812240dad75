# Packages of Debian, unpacked and not installed; apt's own state is not touched. For the scripts of this folder, which set
# `dir` and remove "$dir/apt" at their end. `arch` names an architecture that is not this machine's.

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
MIRROR=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1)
MIRROR=${MIRROR:-http://deb.debian.org/debian}

# suite NAME TOOL ARGS: apt with one suite, or several with blanks between, and a state of its own.
suite() {
    local state=$dir/apt/${1// /+}${arch:+-$arch} name=$1 tool=$2 other=()
    shift 2
    [ -z "${arch:-}" ] || other=(-o "APT::Architecture=$arch" -o "APT::Architectures=$arch")
    mkdir -p "$state"/{lists,cache/archives}/partial "$state/none"
    : >>"$state/status"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$MIRROR" "$name" "$KEYRING" \
        >"$state/own.sources"
    "$tool" -q -o Dir::Etc::sourcelist="$state/own.sources" -o Dir::Etc::sourceparts="$state/none" \
        -o Dir::Etc::preferencesparts="$state/none" -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
        -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root \
        -o APT::Update::Error-Mode=any -o Acquire::Retries=2 -o Acquire::http::Timeout=20 "${other[@]}" "$@"
}

# unpack SUITE INTO PACKAGES: without installing.
unpack() {
    local name=$1 into=$2
    shift 2
    mkdir -p "$into/debs"
    (cd "$into/debs" && suite "$name" apt-get download "$@" >&2)
    for deb in "$into"/debs/*.deb; do dpkg-deb -x "$deb" "$into"; done
    rm -r "$into/debs"
}

# unpack_all SUITE INTO PACKAGES: the same, and all that they depend on.
unpack_all() {
    local name=$1 into=$2
    shift 2
    suite "$name" apt-get install --download-only --no-install-recommends -y "$@" >&2
    for deb in "$dir/apt/${name// /+}${arch:+-$arch}"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$into"; done
}
