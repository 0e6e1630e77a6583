package main

import (
	"context"
	"fmt"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// revisionBump is what etcd's guide to disaster recovery adds to the revision of a restored
// snapshot, so that no client has seen a later one.
const revisionBump = 1_000_000_000

const snapshotUsage = `usage: etcd-snapshot save <endpoint> <file>
       etcd-snapshot restore <file> <data-dir> <peer-url>`

// etcdSnapshot saves a snapshot as "etcdctl snapshot save" does, or restores one as "etcdutl snapshot
// restore --bump-revision --mark-compacted" does.
func etcdSnapshot(argv []string) {
	if err := runEtcdSnapshot(argv[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runEtcdSnapshot(args []string) error {
	manager := snapshot.NewV3(zap.NewNop())
	switch {
	case len(args) == 3 && args[0] == "save":
		_, err := manager.Save(context.Background(), clientv3.Config{Endpoints: args[1:2]}, args[2])
		return err
	case len(args) == 4 && args[0] == "restore":
		return manager.Restore(snapshot.RestoreConfig{
			SnapshotPath:        args[1],
			Name:                "default",
			OutputDataDir:       args[2],
			PeerURLs:            args[3:4],
			InitialCluster:      "default=" + args[3],
			InitialClusterToken: "etcd-cluster",
			RevisionBump:        revisionBump,
			MarkCompacted:       true,
		})
	}
	return fmt.Errorf("%s", snapshotUsage)
}
