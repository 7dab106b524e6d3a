#!/bin/bash
# pki.sh STATE NODES: the cluster's certificates and kubeconfigs, for thirty days.
set -euo pipefail
nodes=$2 server=https://10.66.0.1:6443
mkdir -p "$1/pki" "$1/cfg"
cd "$1/pki"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

# certificate NAME SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
certificate() {
  key "$1"
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
  printf 'extendedKeyUsage=serverAuth,clientAuth\nkeyUsage=digitalSignature\n%s' \
    "${3:+subjectAltName=$3}" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 \
    -extfile "$1.ext" -out "$1.crt" 2> /dev/null
}

# user NAME SUBJECT [SUBJECT-ALTERNATIVE-NAMES]: a certificate and the kubeconfig that shows it
user() {
  certificate "$@"
  cat > "../cfg/$1.kubeconfig" << Y
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "$server", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: test, context: {cluster: test, user: $1}}]
Y
}

umask 077
key ca
openssl req -x509 -new -key ca.key -subj /CN=test-cluster -days 30 -out ca.crt
key sa
openssl ec -in sa.key -pubout -out sa.pub 2> /dev/null
service=DNS:kubernetes.default.svc
certificate apiserver /CN=kube-apiserver "IP:10.66.0.1,IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,$service,$service.cluster.local"
certificate kubelet-client /O=system:masters/CN=apiserver-kubelet-client
user admin /O=system:masters/CN=admin
user controllers /CN=system:kube-controller-manager
user scheduler /CN=system:kube-scheduler
user proxy /CN=system:kube-proxy
for i in $(seq "$nodes"); do
  user "n$i" "/O=system:nodes/CN=system:node:n$i" "IP:10.66.0.1$i,DNS:n$i"
done
