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

before_sandbox() {
    echo 'import sys; print(sys.argv[1])' >job.py
    chmod 755 job.py
}

finish() {
    kill "$UP"
    wait "$UP"
    kill %nats-server
}
