// etcd as the store's tests start it: the server of the pinned module, nothing added but an end.
//
// With MILLPOND_END_WITH_STDIN=1 it ends when its standard input is closed, so that no member outlives
// a test that was killed.
package main

import (
	"io"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	if os.Getenv("MILLPOND_END_WITH_STDIN") == "1" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	etcdmain.Main(os.Args)
}
