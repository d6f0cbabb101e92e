"""How requests and answers travel: HTTP/1.1 with JSON to the gateway of etcd, and gRPC over HTTP/2 for transactions."""
