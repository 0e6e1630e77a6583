// Command suite is the storage part of Kubernetes' e2e.test, with its flags: External.Storage for the driver that
// -storage.testdriver describes, CSI Volumes and CSI Mock. It is a test program, which ginkgo runs.
package main

import (
	"bytes"
	"flag"
	"slices"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/storage"
	_ "k8s.io/kubernetes/test/e2e/storage/csimock"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
	_ "k8s.io/kubernetes/test/utils/ktesting/format"
)

// manifests are the suite's. No image is pulled from a registry, so no container may insist on pulling its image.
type manifests struct {
	testfiles.EmbeddedFileSource
}

func (m manifests) ReadTestFile(path string) ([]byte, error) {
	text, err := m.EmbeddedFileSource.ReadTestFile(path)
	return bytes.ReplaceAll(text, []byte("imagePullPolicy: Always"), []byte("imagePullPolicy: IfNotPresent")), err
}

// alone makes a test run alone that stops kubelet.
func alone(_ types.NodeType, _ ginkgo.Offset, text string, args []any) (string, []any, []error) {
	if slices.Contains(args, framework.WithDisruptive()) {
		args = append(args, ginkgo.Serial)
	}
	return text, args, nil
}

func main() {
	ginkgo.AddTreeConstructionNodeArgsTransformer(alone)
	testing.Init()
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(manifests{e2etestingmanifests.GetE2ETestingManifestsFS()})
	framework.AfterReadingAllFlags(&framework.TestContext)
	every := func(_, _ string) (bool, error) { return true, nil }
	testing.Main(every, []testing.InternalTest{{Name: "TestE2E", F: e2e.RunE2ETests}}, nil, nil)
}
