#!/bin/bash
# idle.sh BINARY NAME [up flags]: private memory of the proxies for each idle connection
A=$1; N=$2; shift 2; export AMBIT_STATE=/run/idle-$N
M=crates/bench/src/manifests
{ cat <<Y
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {istio.io/dataplane-mode: ambient}}
---
Y
cat $M/path.yaml; sed -e 's/@name@/server/;s/@name@/server/g;s/@node@/node-2/' $M/server.yaml;  echo ---; sed -e 's/@name@/near/;s/@name@/near/g;s/@node@/node-1/' $M/server.yaml; } > idle.yaml
$A up --detach "$@" idle.yaml >idle.up 2>&1 || tail -5 idle.up
sleep 2
mem() { for p in $(pgrep -f "ambit.* proxy |proxy ztunnel"); do awk -v c="$(tr '\0' '\n' </proc/$p/cmdline /proc/$p/environ 2>/dev/null | grep -oE "worker|^(NODE_NAME=)?node-[12]$" | tr '\n' ' ') $(cat /proc/$p/comm) $p" '/^Private|^Pss_Anon|^Rss:/{s[$1]+=$2} END{print c, "rss", s["Rss:"], "private", s["Private_Clean:"]+s["Private_Dirty:"], "anon", s["Pss_Anon:"]}' /proc/$p/smaps_rollup; done; }
cat > idlec.py <<'P'
import socket,sys,time
n,host,port=int(sys.argv[1]),sys.argv[2],int(sys.argv[3]); s=[]
bad=0
for i in range(n):
    try:
        c=socket.create_connection((host,port),10); c.sendall(b"GET /?size=10 HTTP/1.1\r\nHost: a\r\n\r\n"); c.recv(4096); s.append(c)
    except OSError as e: bad+=1; last=e
print("open",len(s),"bad",bad,flush=True); time.sleep(12)
P
for h in ${TO:-server near}; do
$A exec bench/client -- python3 $PWD/idlec.py 200 $h.bench 8080 >/dev/null 2>&1 & sleep 4; kill %1 2>/dev/null; $A exec bench/client -- pkill -f idlec.py; sleep 3
echo "== $N $h before"; mem
$A exec bench/client -- python3 $PWD/idlec.py 2500 $h.bench 8080 > idle.out 2>&1 &
for i in $(seq 40); do grep -q open idle.out && break; sleep 1; done; sleep 6
cat idle.out; mem; wait; sleep 3; echo after; mem
done
$A down >/dev/null
