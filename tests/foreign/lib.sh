# What the scripts of this folder share: sourced, not run. An image, a mount of it whose server is killed in the end
# whatever happens, and comparisons.
#
# A script is `title`, `need`, and then steps between `new_image` and `unmount`. It exits with 0 if all is well, with 77
# if what it needs is not here (with CI=true only if nobody can install it, unless DIOXIDE_MAY_SKIP=1), otherwise with another status.
# From the environment: DIOXIDE (the command), QUICK=1 (the short form), FOREIGN_DIR (where images go; /dev/shm),
# FOREIGN_TOOLS (where cargo installs to), MAKER (mke2fs: make images with that), MOUNT_OPTIONS, NO_INSTALL=1.

set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
target=$(readlink -m "${CARGO_TARGET_DIR:-$here/../../target}")
# The short form takes builds that are made fast.
tools=$(readlink -m "${FOREIGN_TOOLS:-$target/foreign${QUICK:+-quick}}")
DIOXIDE=$(readlink -m "${DIOXIDE:-$target/debug/dioxide}")
QUICK=${QUICK:-}
name=$(basename "$0")

say() { echo "$name: $*"; }
fail() { say "FAILED: $*" >&2; exit 1; }
skip() { say "skipped: $*"; exit 77; }
# What could be installed and is not.
not_installed() { [ "${CI-}" != true ] || [ -n "${DIOXIDE_MAY_SKIP-}" ] || fail "$*"; skip "$*"; }

[ -x "$DIOXIDE" ] || fail "no $DIOXIDE: build it (cargo build -p dioxide-cli) or name one in DIOXIDE"
[ -w /dev/fuse ] || skip "needs /dev/fuse"
[ "$(id -u)" = 0 ] || [ -u "$(command -v fusermount3)" ] || skip "needs root, or fusermount3"

work=$(mktemp -d -p "${FOREIGN_DIR:-/dev/shm}" "dioxide-$name.XXXXXX")
image=$work/image mnt=$work/mnt server= watchdog=
mkdir "$mnt"
chmod 755 "$work"

cleanup() {
    local status=$?
    trap - EXIT
    set +e
    leave 2>/dev/null
    [ -z "$watchdog" ] || kill "$watchdog" 2>/dev/null
    for started in "${started[@]:-}"; do [ -z "$started" ] || kill -9 "$started" 2>/dev/null; done
    [ -z "$server" ] || { kill -9 "$server"; wait "$server"; } 2>/dev/null
    # A mount without its server is no mount point to mountpoint(1).
    if grep -qF " $mnt " /proc/self/mounts; then detach; fi
    if mountpoint -q "$work/kernel"; then umount "$work/kernel"; fi
    rm -rf --one-file-system "$work"
    exit "$status"
}
started=()
# What a script has to end itself, beside the processes that it names in `started`.
leave() { :; }
trap cleanup EXIT
trap 'exit 1' TERM INT HUP

detach() { if [ "$(id -u)" = 0 ]; then umount -l "$mnt"; else fusermount3 -uz "$mnt"; fi; }

# need WHAT:PACKAGE...: what comes from Debian; a command, or a path.
need() {
    local need missing=()
    for need in "$@"; do
        [ -e "${need%%:*}" ] || command -v "${need%%:*}" >/dev/null || missing+=("${need##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] && [ -z "${NO_INSTALL:-}" ] && command -v apt-get >/dev/null \
        || not_installed "please install ${missing[*]}"
    say "installing ${missing[*]}"
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${missing[@]}")
    # The package lists may be old, or not there.
    "${install[@]}" >/dev/null || { apt-get -q update && "${install[@]}"; } >/dev/null \
        || not_installed "apt-get could not install ${missing[*]}"
}

# need_crate CRATE VERSION: a program from crates.io, of this version.
need_crate() {
    export PATH="$tools/bin:$PATH"
    [ ! -x "$tools/bin/$1" ] || return 0
    [ -z "${NO_INSTALL:-}" ] && command -v cargo >/dev/null \
        || not_installed "please run: cargo install $1 --version $2 --root $tools"
    say "installing $1 $2"
    CARGO_TARGET_DIR=$target/foreign-build cargo install -q ${QUICK:+--debug} "$1" --version "$2" --locked --root "$tools" \
        || not_installed "cargo could not install $1"
}

need_root() { [ "$(id -u)" = 0 ] || skip "needs root"; }

# limit SECONDS [QUICK]: after this the server is killed, and whoever waits for it gets an error: nothing hangs.
limit() {
    [ -z "$watchdog" ] || kill "$watchdog" 2>/dev/null || true
    local main=$$ seconds=$1
    [ -z "$QUICK" ] || seconds=${2:-$1}
    (
        trap 'kill $!; exit' TERM
        sleep "$seconds" &
        wait $!
        echo "$name: too long: over $seconds s" >&2
        cat "$work/server" 2>/dev/null | xargs -r kill -9
        kill "$main"
    ) &
    watchdog=$!
}

# new_image SIZE [OPTION...]: by `dioxide mkfs`, or by mke2fs where MAKER says so.
new_image() {
    local size=$1
    shift
    rm -f "$image"
    case ${MAKER:-dioxide} in
        dioxide) "$DIOXIDE" mkfs -q "$@" "$image" "$size" ;;
        mke2fs) mke2fs -q -F -t ext4 "$@" "$image" "$size" ;;
        *) fail "MAKER is dioxide or mke2fs" ;;
    esac
    if [ "$(id -u)" != 0 ]; then own_root; fi
}

# The directories that are there belong to who runs this.
own_root() {
    local dir field
    for dir in / /lost+found; do
        for field in uid gid; do echo "sif $dir $field $(id -${field:0:1})"; done
    done | debugfs -w -f - "$image" >/dev/null 2>&1
}

# mount_image [OPTION,...]: a server of this shell, so that it can be killed and its end be seen.
mount_image() {
    local options=${1:-}${1:+${MOUNT_OPTIONS:+,}}${MOUNT_OPTIONS:-}
    # Not through a pipe of the caller's: the server would keep that open.
    "$DIOXIDE" mount -f ${options:+-o "$options"} "$image" "$mnt" >"$work/said" 2>&1 &
    server=$!
    echo "$server" >"$work/server"
    local try
    for try in {1..600}; do
        ! mountpoint -q "$mnt" || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    cat "$work/said" >&2
    fail "it does not mount"
}

# unmount: waits until the image is closed, and wants it clean.
unmount() {
    local try
    # Somebody may look at a new mount for a moment.
    for try in {1..20}; do
        if timeout 300 "$DIOXIDE" umount "$mnt" 2>"$work/umount"; then break; fi
        [ "$try" != 20 ] || { cat "$work/umount" >&2; fail "it does not unmount"; }
        sleep 0.25
    done
    ended
    clean
}

ended() {
    local status=0
    wait "$server" || status=$?
    server=
    rm -f "$work/server"
    [ "$status" = 0 ] || { cat "$work/said" >&2; fail "the server ended with $status"; }
    [ ! -s "$work/said" ] || { cat "$work/said"; }
}

clean() {
    local status=0
    e2fsck -fn "$image" >"$work/e2fsck" 2>&1 || status=$?
    [ "$status" = 0 ] || { cat "$work/e2fsck" >&2; fail "e2fsck -fn: $status"; }
    # Of an image that nobody closed e2fsck says nothing where it changes nothing.
    dumpe2fs -h "$image" >"$work/superblock" 2>/dev/null || fail "dumpe2fs -h: $?"
    grep -qx 'Filesystem state: *clean' "$work/superblock" || fail "not closed: $(grep '^Filesystem state' "$work/superblock")"
    ! grep -q '^Filesystem features:.* needs_recovery' "$work/superblock" || fail "not closed: needs_recovery"
}

# crash: SIGKILL of the server. What it has written is in the image, what it has not is lost.
crash() {
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    server=
    rm -f "$work/server"
    detach
}

# manifest DIR [part]: a line for each file: name, kind, mode, owner, time, size, target; then which names are one file, and
# how many names it has, but for a part of a tree, where others may have some; then contents; then xattrs.
manifest() {
    (
        cd "$1"
        # Sizes of directories, and times of last access, are everybody's own.
        find . -xdev \( -type d -printf '%P %y %m %U %G %T@\n' -o -printf '%P %y %m %U %G %T@ %s %l\n' \) | sort
        find . -xdev ! -type d -links +1 -printf '%i %P\n' | sort | awk '
            { ino = $1; sub(/^[0-9]+ /, ""); if (ino != last) { first = $0; last = ino } else print "same", first, $0 }' | sort
        [ "${2:-}" = part ] || find . -xdev ! -type d -links +1 -printf '%n names: %P\n' | sort
        find . -xdev -type f -print0 | sort -z | xargs -0 -r cksum
        # A tmpfs, an overlay and a security module have attributes of their own.
        getfattr -R -h -P -d -m '^(user|security\.capability|system\.posix_acl|trusted\.[^o])' -e hex . 2>/dev/null | awk -v RS= '{ gsub("\n", " "); print }' | sort
    )
}

# same A B: two manifests.
same() {
    cmp -s "$1" "$2" || { diff "$1" "$2" | head -n 40 >&2 || true; fail "${3:-the trees differ}"; }
}

# through_kernel: the manifest of the image as the kernel's ext4 sees it.
through_kernel() {
    local dir=$work/kernel
    mkdir -p "$dir"
    mount -t ext4 -o loop,ro "$image" "$dir"
    manifest "$dir"
    umount "$dir"
}
