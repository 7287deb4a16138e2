# The assumptions of the examples in the command's help texts: files, a user's platform, and servers of the names that they use.

WORK=$PWD

# Runs an example as it is printed, but for words in capitals, which stand for a value.
run() {
    local line=$1 word
    for word in LEASE RUN ID; do
        if [[ " $line " == *" $word "* ]]; then
            line=${line/ $word/ $("value_of_$word")}
        fi
    done
    echo "== $line"
    (eval "$line") </dev/null
}

# Runs an example until it serves, and then ends it.
serve() {
    local line=$1 process
    echo "== $line"
    rm -f "$WORK/served.log"
    bash -c "exec $line" >"$WORK/served.log" 2>&1 </dev/null &
    process=$!
    wait_for serves "$process"
    kill -TERM "$process"
    wait "$process" || { echo "it ended with status $?"; cat "$WORK/served.log"; return 1; }
}

# Runs an example that waits for events until a run for an event has succeeded, and then ends it.
trigger() {
    local line=$1 process start=exec
    echo "== $line"
    [[ $line != *' | '* ]] || start=
    : >"$WORK/triggered.log"
    bash -c "$start $line" >"$WORK/triggered.log" 2>&1 </dev/null &
    process=$!
    [[ $line != *' --nats '* ]] || wait_for send_message
    wait_for grep --quiet 'succeeded in' "$WORK/triggered.log"
    if [[ -n $start ]]; then
        kill -TERM "$process"
    else
        # The events end with the first program of the pipeline.
        kill -TERM "$(pgrep --parent "$process" tail)"
    fi
    wait "$process" || { echo "it ended with status $?"; cat "$WORK/triggered.log"; return 1; }
}

# Sends a message to the subject of the example for NATS, and waits for the reply.
send_message() {
    python -B - <<'END'
import socket

with socket.create_connection(("n1", 4222), timeout=20) as server, server.makefile("rwb") as lines:
    lines.write(b'CONNECT {"verbose": false}\r\nSUB replies 1\r\nPUB jobs.resize replies 5\r\nhello\r\n')
    lines.flush()
    for line in lines:
        if line.startswith(b"MSG "):
            break
    else:
        raise SystemExit("the server has closed the connection")
END
}

# Runs an example on a platform of its own, which lends a shared core.
run_on_shared_core() {
    local process
    export SUBLET_STATE=$WORK/shared
    sublet up --cores 1 --shared-cores 1 >shared.log 2>&1 &
    process=$!
    wait_for lends
    sublet deploy ./libx.so
    run "$1"
    kill "$process"
    wait "$process"
    unset SUBLET_STATE
}

# Runs an example that unmounts a folder of leased memory.
run_on_mounted_folder() {
    local process
    sublet memory mount /tmp/spill >"$WORK/mounted.log" 2>&1 </dev/null &
    process=$!
    wait_for grep --quiet Ctrl-C "$WORK/mounted.log"
    run "$1"
    wait "$process"
}

# Runs an example that trusts the registry of this script.
run_with_registry() {
    SSL_CERT_FILE=$WORK/authority.pem run "$1"
}

# Runs an example on the store of the stopped manager.
run_on_store() {
    SUBLET_STATE=/var/lib/sublet/manager run "$1"
}

# Runs an example for two sandboxes that exist, in place of those that it calls 3 and 4. Only sandboxes that have ended are deleted.
run_with_sandboxes() {
    local word sandbox words=()
    for word in $1; do
        case $word in
            3) words+=("${SANDBOXES[0]}") ;;
            4) words+=("${SANDBOXES[1]}") ;;
            *) words+=("$word") ;;
        esac
    done
    if [[ $1 == 'sublet sandbox delete '* ]]; then
        for sandbox in "${SANDBOXES[@]}"; do
            sublet sandbox kill "$sandbox" --signal KILL || echo "sandbox $sandbox has ended before"
        done
        wait_for have_stopped
    fi
    run "${words[*]}"
}

have_stopped() {
    sublet sandbox state --json "${SANDBOXES[@]}" | jq --exit-status '[.sandboxes[] | .status == "stopped"] | all'
}

# The examples are run by root, and sudo would run them by root, too.
sudo() {
    "$@"
}

# Whether the process of an example serves; fails at once if it has ended.
serves() {
    kill -0 "$1" || { cat "$WORK/served.log" >&3; exit 1; }
    grep --quiet --extended-regexp 'Ctrl-C|waits for' "$WORK/served.log"
}

exec 3>&1

wait_for() {
    local _
    for _ in {1..150}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    echo "this did not succeed within a minute: $*"
    cat "$WORK"/*.log
    return 1
}

# A lease that is active, or else the newest one.
value_of_LEASE() {
    sublet ps --json | jq --raw-output --exit-status '.leases[0].id // empty' ||
        sublet bill --json | jq --raw-output '.leases[0].lease'
}

value_of_RUN() {
    sublet graph history --json | jq --raw-output '.runs[0].run'
}

value_of_ID() {
    sublet token list --json | jq --raw-output '.tokens[0].id'
}

before_memory() {
    mkdir -p /tmp/spill
}

before_completions() {
    mkdir -p ~/.zfunc ~/.config/fish/completions
}

before_manual() {
    mkdir -p /usr/local/share/man/man1
}

# The files that a service has, and names of other machines.
before_manager() {
    install -D --mode=644 "$PAGE_SOURCES/packaging/manager.toml" /etc/sublet/manager.toml
    install -D --mode=644 "$PAGE_SOURCES/packaging/agent.toml" /etc/sublet/agent.toml
    mkdir -p /run/sublet-manager /run/sublet-agent /var/lib/sublet/manager /var/lib/sublet/agent
    chmod 700 /var/lib/sublet/*
    cp /etc/sublet/manager.toml m.toml
    echo '10.77.0.1 m1 m2 n1 nats1.example.org' >>/etc/hosts
    nats-server --addr 10.77.0.1 --jetstream --store_dir "$WORK/nats" >nats.log 2>&1 &
    wait_for grep 'Server is ready' nats.log
}

before_agent() {
    sublet manager --advertise https://m1:7433 >manager.log 2>&1 &
    MANAGER=$!
    export SUBLET_MANAGER=unix:/run/sublet-manager/manager.sock
    wait_for sublet ps
    cp /var/lib/sublet/manager/tls/ca.pem ca.pem
    sublet token create --role agent --node "$(hostname)" >token
}

# The state of the agent is changed while it runs.
start_agent() {
    sublet agent >agent.log 2>&1 &
    AGENT=$!
    wait_for grep Ctrl-C agent.log
}

lends() {
    sublet ps --json | jq --exit-status '.nodes[] | select(.state == "lending")'
}

after_agent() {
    kill "$AGENT"
    wait "$AGENT"
    kill "$MANAGER"
    wait "$MANAGER"
    unset SUBLET_MANAGER
    rm -r /etc/sublet
}

before_store() {
    mkdir /var/backups/sublet
}

before_deploy() {
    mkdir -p /srv/datasets
    sublet up --folder datasets=/srv/datasets --node node --listen 127.0.0.1:7441 >up.log 2>&1 &
    UP=$!
    wait_for lends
    cat >libx.c <<-'END'
		#include <unistd.h>
		unsigned f(void *in, unsigned size, void *out) { return write(1, "called\n", 7) - 7; }
		unsigned sleeps(void *in, unsigned size, void *out) { sleep(600); return 0; }
		unsigned pauses(void *in, unsigned size, void *out) { sleep(5); return 0; }
	END
    cc -shared -fPIC -o libx.so libx.c
    echo 'int f(int in, int size, int out) { return 0; }' >x.c
    clang --target=wasm32 -nostdlib -O2 -Wl,--no-entry -Wl,--export=f -o x.wasm x.c
    mkdir -p words texts vectors
    printf 'def count(text):\n    return str(len(bytes(text).split())).encode()\n' >words/words.py
    mkdir links
    PYTHONPATH=$PAGE_SOURCES/python/tests python -B -c '
import pathlib, wheels
wheels.make(pathlib.Path("links"), "alpha", "1.0", {"alpha.py": "value = 1\n"})'
    printf '%s\n' --no-index "--find-links $WORK/links" alpha >words/requirements.txt
    echo 'exports.shout = (text) => text' >texts/index.js
    echo 'kernel void add_floats(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written) {}' |
        tee vectors/vectors.cl >vectors/more.cl
    printf 12345678 | tee in in.bin file key.txt >/dev/null
    cat >app.json <<-'END'
		{"version": 1, "name": "app", "edges": [],
		 "components": [{"name": "f", "type": "compute", "package": "libx", "function": "f", "entry": true}]}
	END
}

# A run whose client is killed while its component executes.
lose_client() {
    local client
    cat >paused.json <<-'END'
		{"version": 1, "name": "paused", "edges": [],
		 "components": [{"name": "pauses", "type": "compute", "package": "libx", "function": "pauses", "entry": true}]}
	END
    sublet graph run paused.json <in.bin >paused.log 2>&1 &
    client=$!
    wait_for is_paused
    kill -KILL "$client"
    wait "$client" || true
}

is_paused() {
    sublet graph top --json | jq --exit-status '.runs[] | select(.graph == "paused")'
}

# Events of both kinds of files.
before_graph_trigger() {
    mkdir inbox
    cp in.bin inbox
    echo line >events.log
}

# An application that is worth a split.
before_profile() {
    cat >app.py <<'END'
import time

import sublet


@sublet.app
def regression(n: int):
    table = bytearray(n)
    time.sleep(0.2)
    kept = bytes(table[: n // 8])
    total = sum(kept)
    time.sleep(0.6)
    return len(kept) + total


if __name__ == "__main__":
    print(regression(8 << 20))
END
}

before_sublet() {
    sublet call libx/f --input in --output out
}

before_call() {
    sublet secret set DB_KEY <file
}

# The agent of a service has its logs elsewhere.
before_logs() {
    cp -r ~/.local/state/sublet/logs /var/lib/sublet/agent
}

before_package() {
    sublet token create --tenant alice >alice.token
    SUBLET_TOKEN_FILE=alice.token sublet deploy ./libx.so
}

# An environment with a name, and other wheels than that of the package.
before_environment() {
    PYTHONPATH=$PAGE_SOURCES/python/tests python -B -c '
import pathlib, sublet, wheels
wheels.make(pathlib.Path("links"), "beta", "1.0", {"beta.py": "value = 2\n"})
sublet.Environment(["beta"], name="science", index=False, find_links=pathlib.Path("links").resolve()).deploy()'
}

before_gc() {
    cp libx.so old.so
    sublet deploy ./old.so
}

# A lease of a client that waits.
before_lease() {
    sublet deploy ./libx.so
    sublet call libx/sleeps <in.bin >call.log 2>&1 &
    CALL=$!
    wait_for has_lease
}

has_lease() {
    sublet ps --json | jq --exit-status '.leases[0]'
}

after_lease() {
    wait "$CALL" || true
}

# A program in Python, an image with a program, as `docker save` writes it, and two sandboxes.
before_sandbox() {
    echo 'import sys; print(sys.argv[1])' >job.py
    chmod 755 job.py
    PYTHONPATH=$PAGE_SOURCES/python/tests python -B -c '
import images
images.save("app.tar", "debian:12", [images.program("/bin/ls")])'
    sublet image import ./app.tar
    mapfile -t SANDBOXES < <(sublet sandbox create --json --count 2 -- /bin/sleep 600 | jq '.sandboxes[].id')
    [[ ${#SANDBOXES[@]} == 2 ]]
}

# The same image in a registry without TLS, and in one with TLS that has the name of Docker's.
before_image() {
    local program=$PAGE_SOURCES/target/tools/docker-registry/usr/bin/docker-registry
    [[ -x $program ]] || program=docker-registry
    echo '127.0.0.1 lab registry-1.docker.io' >>/etc/hosts
    mkdir registry
    PYTHONPATH=$PAGE_SOURCES/python/tests python -B -c '
import images, pathlib
registry = images.Registry(pathlib.Path("registry"), 5000)
for name, tag in [("app", "latest"), ("library/debian", "12")]:
    registry.push(name, [images.program("/bin/ls")], tag=tag)'
    make_certificate registry-1.docker.io
    jq '.http = {addr: "127.0.0.1:443", tls: {certificate: "certificate.pem", key: "key.pem"}}' registry/config.yml >registry/tls.yml
    "$program" serve registry/tls.yml >registry.log 2>&1 &
    REGISTRY=$!
    wait_for bash -c '</dev/tcp/127.0.0.1/443'
}

# A certificate of a name, and that of the authority which has signed it.
make_certificate() {
    local new=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
    openssl req -x509 "${new[@]}" -keyout authority.key -out authority.pem -days 2 -subj /CN=authority
    openssl req "${new[@]}" -keyout key.pem -out request.pem -subj "/CN=$1"
    echo "subjectAltName = DNS:$1" >extensions
    openssl x509 -req -in request.pem -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 -extfile extensions -out certificate.pem
}

after_image() {
    kill "$REGISTRY"
}

finish() {
    kill "$UP"
    wait "$UP"
    kill %nats-server
}
