# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause
# What the scripts of this directory share: daemons with sockets of their own, clients of them,
# cases with a time limit, one line for each: "ok NAME", "not ok NAME" or "skip NAME: why".
#
# A script sources this, calls private_net, start_daemon and run_case, and ends with finish.
# From the environment:
#   VERNIC_BUILD        build directory to test (default: build/ of the tree)
#   VERNIC_TEST_LABEL   prefix of the cases' names
#   VERNIC_TEST_WRAP    words put in front of every daemon and client (a launcher)
#   VERNIC_TEST_DAEMON  further arguments of every daemon
set -u
export LC_ALL=C.UTF-8

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(realpath "${VERNIC_BUILD:-$tools/../../build}")
vernicd=${VERNIC_DAEMON:-$build/emu/vernicd}
vernic=$build/src/cli/vernic
library=$build/src/verbs/libibverbs.so.1
helpers=$build/tests/tools
label=${VERNIC_TEST_LABEL:+$VERNIC_TEST_LABEL: }
read -ra wrap <<<"${VERNIC_TEST_WRAP-}"
read -ra daemon_args <<<"${VERNIC_TEST_DAEMON-}"

limit=60      # seconds one program may take
failures=0
next_port=$((20000 + $$ % 400 * 20)) # TCP ports the programs meet on
declare -A daemon_pid=() daemon_socket=() daemon_net=()

# Outside of a private network two scripts at once would want the same addresses: run in a network
# (and mount) namespace of our own. Call it first, with the script's arguments.
private_net() {
	local user=()
	if [ -z "${VERNIC_TEST_NET-}" ]; then
		[ "$(id -u)" = 0 ] || user=(-r)
		if unshare "${user[@]}" -n -m true 2>/dev/null; then
			VERNIC_TEST_NET=private exec unshare "${user[@]}" -n -m "$BASH" "$0" "$@"
		fi
		export VERNIC_TEST_NET=host
	elif [ "$VERNIC_TEST_NET" = private ]; then
		ip link set lo up
		mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns
		# For what this script starts in its turn: it is in it already.
		export VERNIC_TEST_NET=inherited
	fi
	scratch_dir
}

# two_nets MTU COMMAND...: makes network namespaces "one" and "two", joined by a veth pair with
# addresses 10.9.0.1 and .2, fd09::1 and ::2; in each, COMMAND is run before its end comes up. A
# daemon "one" or "two" started afterwards runs there.
two_nets() {
	local mtu=$1 side n=0
	shift
	if [ "$VERNIC_TEST_NET" = host ]; then
		echo 'unshare(1) cannot make network namespaces here'
		return 1
	fi
	ip netns add one && ip netns add two || return
	# Without duplicate address detection link-local addresses are usable at once.
	for side in one two; do
		ip netns exec $side sh -c 'echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad'
		ip -n $side link set lo up
	done
	ip -n one link add veth0 mtu "$mtu" type veth peer name veth0 netns two || return
	for side in one two; do
		n=$((n + 1))
		ip netns exec $side sh -c 'echo 0 >/proc/sys/net/ipv6/conf/veth0/accept_dad'
		[ $# = 0 ] || ip netns exec $side "$@"
		ip -n $side link set veth0 mtu "$mtu" up
		ip -n $side addr add 10.9.0.$n/24 dev veth0
		ip -n $side addr add fd09::$n/64 dev veth0 nodad
		daemon_net[$side]=$side
	done
	# Link-local addresses come with the carrier.
	for side in one two; do
		wait_until 10 eval "ip -n $side -6 addr show dev veth0 scope link | grep -q inet6" || return
	done
}

# The scratch directory: kept where something failed.
scratch_dir() {
	T=$(mktemp -d "${TMPDIR:-/tmp}/vernic-test.XXXXXX")
	chmod 755 "$T"
	# LD_PRELOAD cannot name a path with a blank in it.
	ln -s "$library" "$T/libibverbs.so.1"
	library=$T/libibverbs.so.1
	# A child that is ended before it has become its program must not clean up for us.
	trap '[ $BASHPID != $$ ] || { stop_all; [ $failures != 0 ] || rm -rf "$T"; }' EXIT
	trap 'exit 130' INT TERM HUP
}

# wait_until SECONDS COMMAND...: until it succeeds; fails when the time is over.
wait_until() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || return 1
		sleep 0.05
	done
}

# start_daemon NAME [ARGUMENT...]: and wait until it is ready. In network namespace
# ${daemon_net[NAME]}, if that is set.
start_daemon() {
	local name=$1 net=()
	shift
	[ -z "${daemon_net[$name]-}" ] || net=(ip netns exec "${daemon_net[$name]}")
	mkdir -p "$T/$name"
	[ "$(id -u)" != 0 ] || chmod 777 "$T/$name" # wrap may change the user
	daemon_socket[$name]=$T/$name/socket
	: >"$T/$name.ready"
	"${net[@]}" "${wrap[@]}" "$vernicd" --socket "$T/$name/socket" --ready-fd 3 \
		"${daemon_args[@]}" "$@" 3>>"$T/$name.ready" >"$T/$name.log" 2>&1 </dev/null &
	daemon_pid[$name]=$!
	if ! wait_until 20 daemon_said "$name" || ! grep -q ready "$T/$name.ready"; then
		echo "# daemon $name does not start:"
		sed 's/^/# /' "$T/$name.log"
		return 1
	fi
}
daemon_said() {
	[ -s "$T/$1.ready" ] || ! kill -0 "${daemon_pid[$1]}" 2>/dev/null
}

# stop_daemon NAME: succeeds if it ended as it should.
stop_daemon() {
	local pid=${daemon_pid[$1]-} status=0
	[ "$pid" ] || return 0
	unset "daemon_pid[$1]"
	kill -TERM "$pid" 2>/dev/null
	if ! wait_until 15 gone "$pid"; then
		echo "# daemon $1 does not end on SIGTERM"
		kill -KILL "$pid"
	fi
	wait "$pid" || status=$?
	if [ $status != 0 ]; then
		echo "# daemon $1 ended with status $status:"
		tail -n 40 "$T/$1.log" | sed 's/^/# /'
	fi
	return $status
}
gone() {
	[ ! -e "/proc/$1" ] || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null
}
stop_all() {
	local name status=0
	for name in "${!daemon_pid[@]}"; do
		stop_daemon "$name" || status=1
	done
	return $status
}

# as_client NAME: sets the array argv to what must precede a client of that daemon.
as_client() {
	argv=()
	[ -z "${daemon_net[$1]-}" ] || argv=(ip netns exec "${daemon_net[$1]}")
	argv+=(timeout -k 5 "$limit" "${wrap[@]}" env "VERNIC_SOCKET=${daemon_socket[$1]}"
		"LD_PRELOAD=$library")
}

# on NAME COMMAND...: runs it as a client of that daemon.
on() {
	local argv
	as_client "$1"
	shift
	"${argv[@]}" "$@"
}

# pair SERVER CLIENT HOST COMMAND...: runs COMMAND -p PORT on daemon SERVER, then COMMAND -p PORT
# HOST on daemon CLIENT; succeeds if both do. The outputs are in $T/server and $T/client, and
# shown if one fails.
pair() {
	local server=$1 client=$2 host=$3 argv pid status=0 server_status=0
	shift 3
	next_port=$((next_port + 1))
	as_client "$server"
	"${argv[@]}" "$@" -p $next_port >"$T/server" 2>&1 </dev/null &
	pid=$!
	if wait_until 20 listening_or_gone "$server" $pid; then
		on "$client" "$@" -p $next_port "$host" >"$T/client" 2>&1 </dev/null || status=$?
	else
		status=124
		: >"$T/client"
	fi
	[ $status = 0 ] || kill $pid 2>/dev/null || :
	wait $pid || server_status=$?
	[ $status != 0 ] || [ $server_status != 0 ] || return 0
	echo "FAILED: $* between $server ($server_status) and $client ($status)"
	echo "server:" && tail -n 15 "$T/server"
	echo "client:" && tail -n 15 "$T/client"
	return 1
}
# Whether somebody listens on TCP port $next_port where daemon $1 is, or process $2 has ended.
listening_or_gone() {
	local net=()
	[ -z "${daemon_net[$1]-}" ] || net=(ip netns exec "${daemon_net[$1]}")
	gone "$2" || "${net[@]}" grep -qsiE "^ *[0-9]+: [0-9A-F]+:$(printf %04X $next_port) [0-9A-F:]+ 0A" \
		/proc/net/tcp /proc/net/tcp6
}

# Ends what a case has left in the background.
end_jobs() {
	local pids
	pids=$(jobs -p)
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill $pids 2>/dev/null || :
}

# run_case NAME COMMAND...: in a subshell, errexit set; daemons it starts end with it. Status 77 is
# a skip, the last line of the output its reason.
run_case() {
	local name=$label$1 status log begin=$SECONDS took=''
	shift
	log=$T/$(tr -c 'A-Za-z0-9.\n' _ <<<"$name").log
	next_port=$((next_port + 200))
	[ $next_port -lt 32000 ] || next_port=20001
	(
		daemon_pid=() # the script's own daemons go on
		trap 'status=$?; stop_all || status=1; end_jobs; exit $status' EXIT
		set -e
		"$@"
	) >"$log" 2>&1
	status=$?
	[ $((SECONDS - begin)) -lt 5 ] || took=" ($((SECONDS - begin)) s)"
	case $status in
	0)
		echo "ok $name$took"
		;;
	77)
		echo "skip $name: $(tail -n 1 "$log")"
		;;
	*)
		failures=$((failures + 1))
		echo "not ok $name (status $status; $log)"
		tail -n 40 "$log" | sed 's/^/# /'
		;;
	esac
}

# skip_case NAME WHY
skip_case() {
	echo "skip $label$1: $2"
}

# Ends the script: all daemons must end as they should.
finish() {
	local ended=0
	stop_all >"$T/ended" 2>&1 || ended=1
	run_case 'daemons end as they should' eval "cat '$T/ended'; [ $ended = 0 ]"
	[ $failures = 0 ]
	exit
}

# perftest_rows MIN: the client's table in $T/client has at least MIN rows, each with figures.
perftest_rows() {
	awk -v min="$1" '
		/#bytes/ { table = 1; latency = /t_min/; next }
		table && $1 ~ /^[0-9]+$/ && NF >= 5 {
			rows++
			# bandwidth: size, iterations, peak, average, Mpps; latency: ..., typical, average
			if (latency ? $5 <= 0 || $6 <= 0 : $5 <= 0)
				bad = 1
			# Further columns may be "-nan" where all times are alike: perftest rounds.
			for (i = 1; i <= 6 && i <= NF; i++)
				if ($i !~ /^[0-9.]+$/)
					bad = 1
		}
		END { exit !(rows >= min && !bad) }' "$T/client" && return
	echo "FAILED: no sane table:"
	cat "$T/client"
	return 1
}

# Protocols that tshark suspects in a payload: what the tests send is none of them.
no_guesses=()
for protocol in rpcordma smc smb_direct nvme-rdma lnet iser infiniband_sdp fcoib drbd idp; do
	no_guesses+=(--disable-protocol "$protocol")
done
# dissect FILE OPCODES: nothing but RoCEv2, and each of these opcodes (numbers) is there.
dissect() {
	local opcode
	tshark -r "$1" -T fields -e infiniband.bth.opcode 2>"$T/tshark" | sort | uniq -c >"$T/opcodes"
	cat "$T/opcodes"
	for opcode in $2; do
		grep -qE "^ *[0-9]+ $opcode\$" "$T/opcodes" || { echo "FAILED: no $opcode"; return 1; }
	done
	tshark -r "$1" "${no_guesses[@]}" -Y '!infiniband || _ws.malformed || _ws.expert' 2>>"$T/tshark" >"$T/bad"
	[ ! -s "$T/bad" ] || { echo 'FAILED: tshark complains:'; head -n 20 "$T/bad"; return 1; }
}
