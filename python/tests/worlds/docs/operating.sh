# The assumptions of docs/operating.md: names of machines, services as systemd starts them, and the files of users.
#
# The managers and agents are in the network namespace `nodes`, the page is at the other end of a cable (machine.sh).

WORK=$PWD
SOCKET=unix:/run/sublet-manager/manager.sock
declare -A PROCESSES

# Runs a command until it succeeds, for at most a minute.
wait_for() {
    local _
    for _ in {1..300}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    echo "this did not succeed within a minute: $*"
    tail -n 20 "$WORK"/*.log
    return 1
}

# Starts a program in the network of the nodes: its name here, and its command.
start() {
    local name=$1
    shift
    nsenter --net=/run/netns/nodes "$@" >>"$WORK/$name.log" 2>&1 </dev/null &
    PROCESSES[$name]=$!
}

# Starts a command of Sublet as the units do: with their user and the settings of a file of variables, and without capabilities.
start_unit() {
    local name=$1 settings=()
    shift
    [[ ! -e /etc/sublet/$name.env ]] || mapfile -t settings < <(grep '^[A-Z]' "/etc/sublet/$name.env")
    install -d -o sublet -g sublet -m 755 "/run/sublet-$name"
    install -d -o sublet -g sublet -m 700 "/var/lib/sublet/$name"
    start "$name" setpriv --reuid=sublet --regid=sublet --init-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
        env -i "PATH=$PATH" HOME=/var/lib/sublet "${settings[@]}" /usr/local/bin/sublet "$@"
}

# Stands in for systemd, which is not the init process here: starts what an installed unit names.
systemctl() {
    local name=${3#sublet-} unit=/usr/local/lib/systemd/system/$3.service line
    local lines=("ExecStart=/usr/local/bin/sublet $name" User=sublet)
    [[ "$1 $2" == 'enable --now' ]]
    case $name in
        runner) lines+=("EnvironmentFile=/etc/sublet/$name.env") ;;
        *) lines+=("StateDirectory=sublet/$name" "RuntimeDirectory=sublet-$name") ;;
    esac
    for line in "${lines[@]}"; do
        grep --quiet --line-regexp --fixed-strings -- "$line" "$unit" || { echo "$unit does not have the line $line"; return 1; }
    done
    "start_$name"
}

start_manager() {
    start_unit manager manager
    wait_for env SUBLET_MANAGER=$SOCKET sublet ps
}

start_agent() {
    start_unit agent agent
    wait_for node_is lending
}

start_runner() {
    start_unit runner runner
    wait_for grep --quiet 'drives up to' "$WORK/runner.log"
}

stop() {
    local name
    for name in "$@"; do
        kill "${PROCESSES[$name]}"
        # A NATS server fails when it is stopped.
        wait "${PROCESSES[$name]}" || [[ $name == nats* ]]
        unset "PROCESSES[$name]"
    done
}

# Ends what blocks of the page have started in the background.
stop_jobs() {
    local process
    for process in $(jobs -p); do
        [[ " ${PROCESSES[*]} " == *" $process "* ]] || { kill "$process" && wait "$process"; }
    done
}

node_is() {
    SUBLET_MANAGER=$SOCKET sublet ps --json | jq --exit-status --arg state "$1" '.nodes[] | select(.name == "n1" and .state == $state)'
}

# The functions from here on are in the order of the page.

clone() {
    cd "$PAGE_SOURCES"
    export CARGO_TARGET_DIR=$PAGE_TARGET SUBLET_PROFILE=$PAGE_PROFILE
}

installed() {
    cd "$WORK"
    unset CARGO_TARGET_DIR SUBLET_PROFILE
    cat >>/etc/hosts <<-'END'
		10.77.0.1 global.example.org
		10.77.0.2 manager1.example.org node1.example.org nats1.example.org
		10.77.0.3 manager2.example.org nats2.example.org
	END
}

files_of_n1() {
    install -o root -g sublet -m 640 n1.token /etc/sublet/agent.token
    install -m 644 /var/lib/sublet/manager/tls/ca.pem /etc/sublet/ca.pem
}

by_hand() {
    stop agent manager
    unset SUBLET_MANAGER
}

operator() {
    stop_jobs
    start_manager
    start_agent
    export SUBLET_MANAGER=$SOCKET
}

user() {
    mkdir -p "$HOME/.config/sublet"
    cp /etc/sublet/ca.pem "$HOME/.config/sublet/ca.pem"
    sublet token create --tenant alice >"$HOME/.config/sublet/token"
    make_library 1
    sublet deploy ./libx.so
    sublet package publish libx
    echo input >in
}

# Compiles a version of the library libx.so.
make_library() {
    echo "unsigned f(void *in, unsigned size, void *out) { return $1; }" >libx.c
    cc -shared -fPIC -o libx.so libx.c
}

# The call goes out by the interface and the fabric that the page has named.
operator_after_user() {
    rm out
    sublet call libx/f --input in --output out
    [[ $(stat --format %s out) == 1 ]]
    unset SUBLET_CA SUBLET_TOKEN_FILE SUBLET_FABRIC SUBLET_INTERFACE
    export SUBLET_MANAGER=$SOCKET
}

folders() {
    mkdir /srv/datasets
    install -d -o sublet -g sublet -m 700 /srv/work
}

versions() {
    stop agent
    start_agent
    sublet call libx/f --folder datasets --folder work --input in --output out
    make_library 2
    sublet deploy ./libx.so
    cat >app.json <<-'END'
		{"version": 1, "name": "app", "edges": [],
		 "components": [{"name": "f", "type": "compute", "package": "libx", "function": "f", "entry": true}]}
	END
    sublet graph deploy app.json
    sublet graph run app --input in --output out
}

alice() {
    export SUBLET_MANAGER=https://manager1.example.org:7433
    export SUBLET_CA=$HOME/.config/sublet/ca.pem SUBLET_TOKEN_FILE=$HOME/.config/sublet/token
}

operator_after_alice() {
    unset SUBLET_CA SUBLET_TOKEN_FILE
    export SUBLET_MANAGER=$SOCKET
}

# Runs the script that Slurm executes after a job, on a node with this other job, if it is one.
after_job() {
    mkdir -p slurm
    printf '#!/bin/sh\necho %s\n' "$1" >slurm/squeue
    chmod 755 slurm/squeue
    PATH=$PWD/slurm:$PATH sh ./epilog
}

# Runs the scripts that Slurm would, and three NATS servers in a cluster; puts the embedded store aside.
nats() {
    sh ./prolog
    wait_for node_is reclaimed
    after_job 17
    node_is reclaimed
    after_job ''
    wait_for node_is lending
    stop agent manager
    cp -a /etc/sublet/manager.toml manager.toml.embedded
    mv /var/lib/sublet/manager /var/lib/sublet/embedded
    local server
    for server in 2 3 4; do
        cat >"nats$server.conf" <<-END
			server_name: nats$server
			listen: 10.77.0.$server:4222
			jetstream { store_dir: "$WORK/nats$server" }
			authorization { user: sublet, password: PASSWORD }
			cluster { name: sublet, listen: 10.77.0.$server:6222
			    routes: ["nats://10.77.0.2:6222", "nats://10.77.0.3:6222", "nats://10.77.0.4:6222"] }
		END
        start "nats$server" nats-server --config "$WORK/nats$server.conf"
    done
}

# Starts both managers: the second has a configuration, an address and folders of its own.
two_managers() {
    wait_for grep --quiet 'JetStream cluster new metadata leader' nats2.log nats3.log nats4.log
    sed -e 's/manager1/manager2/' -e 's|/var/lib/sublet/manager|/var/lib/sublet/manager2|' \
        -e 's|/run/sublet-manager/|/run/sublet-manager2/|' /etc/sublet/manager.toml >/etc/sublet/manager2.toml
    chmod 644 /etc/sublet/manager2.toml
    chmod 711 /etc/sublet
    start_unit manager manager --listen 10.77.0.2:7433
    wait_for env SUBLET_MANAGER=$SOCKET sublet ps
    start_unit manager2 manager --config /etc/sublet/manager2.toml --listen 10.77.0.3:7433
    wait_for env SUBLET_MANAGER=unix:/run/sublet-manager2/manager.sock sublet ps
    cp /var/lib/sublet/manager2/tls/ca.pem "$HOME/.config/sublet/ca.pem"
    SUBLET_MANAGER=$SOCKET sublet token create --role agent --node n1 >/etc/sublet/agent.token
    SUBLET_MANAGER=$SOCKET sublet token create --role operator >"$HOME/.config/sublet/token"
    cp /var/lib/sublet/manager2/tls/ca.pem /etc/sublet/ca.pem
    start_agent
}

# Either manager may be gone. The machine of the global manager has no configuration.
global_manager() {
    mv /etc/sublet/manager.toml manager.toml.nats
    export SUBLET_CA=$HOME/.config/sublet/ca.pem SUBLET_TOKEN_FILE=$HOME/.config/sublet/token
    sublet ps
    stop manager2
    sublet ps
}

global_client() {
    wait_for env SUBLET_MANAGER=https://global.example.org:7433 sublet ps
}

# Ends all of that, and starts a manager and an agent by hand, without configurations.
earlier_version() {
    kill "$(cat "$HOME/.local/state/sublet/lock")"
    stop runner agent manager nats2 nats3 nats4
    mv /etc/sublet/agent.toml agent.toml.embedded
    unset SUBLET_CA SUBLET_TOKEN_FILE
    export SUBLET_MANAGER=unix:$HOME/manager/manager.sock
    mkdir -p /opt/sublet-new
    cp -r /usr/local/bin /usr/local/libexec /opt/sublet-new
    sublet manager --state "$HOME/manager" --listen 127.0.0.1:7433 &
    MANAGER=$!
    wait_for sublet ps
    sublet agent --state "$HOME/n1" --name n1 --cores 2 &
    AGENT=$!
    wait_for lends
}

lends() {
    sublet ps --json | jq --exit-status '.nodes[] | select(.state == "lending")'
}

embedded() {
    wait_for lends
    stop_jobs
    rm -r /var/lib/sublet/manager
    mv /var/lib/sublet/embedded /var/lib/sublet/manager
    mv manager.toml.embedded /etc/sublet/manager.toml
    mv agent.toml.embedded /etc/sublet/agent.toml
    export SUBLET_MANAGER=$SOCKET
    start_manager
}

manager_stopped() {
    stop manager
}

restored() {
    start_manager
}

# Ends everything, servers after their clients.
finish() {
    local name
    stop_jobs
    for name in runner agent manager2 manager nats2 nats3 nats4; do
        [[ -z ${PROCESSES[$name]-} ]] || stop "$name"
    done
}
