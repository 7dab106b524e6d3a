#!/bin/bash
export AMBIT_STATE=/run/slow-$1; A=ambit-dist; N=$1; shift
M=crates/bench/src/manifests
{ cat <<Y
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {istio.io/dataplane-mode: ambient}}
---
Y
cat $M/path.yaml; sed -e 's/@name@/server/g;s/@node@/node-2/' $M/server.yaml
for i in 1 2 3 4 5 6 7 8 9 10; do cat <<Y
apiVersion: v1
kind: Service
metadata: {name: endless$i, namespace: bench}
spec: {selector: {app: endless$i}, ports: [{name: tcp, port: 9100}]}
---
apiVersion: v1
kind: Pod
metadata: {name: endless$i, namespace: bench, labels: {app: endless$i}}
spec:
  serviceAccountName: server
  nodeName: node-2
  containers:
  - {name: e, image: x, command: [python3, slowserver.py]}
---
apiVersion: v1
kind: Pod
metadata: {name: slow$i, namespace: bench, labels: {app: slow}}
spec:
  serviceAccountName: client
  nodeName: node-1
  containers:
  - {name: e, image: x, command: [sleep, infinity]}
---
Y
done
} > /tmp/slow.yaml
$A up --detach "$@" /tmp/slow.yaml >/tmp/slow.up 2>&1 || tail -5 /tmp/slow.up
sleep 2
small() { $A exec bench/client -- ambit load "http://server.bench:8080/?size=1024" --rate 200/s --connections 4 -d 8s --warm-up 1s 2>&1 | grep -iE "^requests|^latency"; }
rss() { for p in $(pgrep -f "^[^ ]*ambit-dist proxy|^ambit proxy"); do awk -v c="$(tr '\0' ' ' </proc/$p/cmdline | cut -c1-45)" '/VmRSS/{print c, int($2/1024) " MB"}' /proc/$p/status; done; }
echo "== $N alone"; small; rss
for i in 1 2 3 4 5 6 7 8 9 10; do $A exec bench/slow$i -- python3 slow.py 1000 endless$i.bench 9100 1 40 > /tmp/slow.$i 2>&1 & done
for t in $(seq 30); do [ $(cat /tmp/slow.[1-9]* | grep -c open) = 10 ] && break; sleep 1; done
sleep 4; echo "== $N beside 10 x 1000 readers that do not read, after $t s"; grep -h open /tmp/slow.[1-9]*; small; rss; free -m | awk '/Mem/{print "used MB", $3}'; grep TCP /proc/net/sockstat
echo "long connections that stand: $(for i in 1 2 3 4 5 6 7 8 9 10; do $A exec bench/slow$i -- sh -c 'grep -c " 01 " /proc/net/tcp'; done | xargs)"
wait; sleep 2; echo "after:"; rss; grep -h "error=" $AMBIT_STATE/logs/proxy-*.log | sed 's/.*error=//' | sort | uniq -c | sort -rn | head -3 | cut -c1-200
$A down
