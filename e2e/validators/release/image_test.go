package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A docker that builds nothing, and prints a digest or the SBOM. Its SBOM is larger than a pipe's buffer.
const docker = `#!/bin/sh
case "$*" in
*Digest*) echo sha256:0 ;;
*SBOM*) cat "$SBOM" ;;
esac
`

func TestImageNeedsAnSBOMWithTheCrates(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(docker), 0o700); err != nil {
		t.Fatal(err)
	}
	rest := strings.Repeat("\n", 1<<20)
	for _, test := range []struct {
		sbom     string
		accepted bool
	}{
		{`{"name":"tokio"}` + rest, true},
		{rest + `{"name":"tokio"}`, true},
		{`{"name":"libc6"}` + rest, false},
		{"", false},
	} {
		sbom := filepath.Join(dir, "sbom")
		if err := os.WriteFile(sbom, []byte(test.sbom), 0o600); err != nil {
			t.Fatal(err)
		}
		command := exec.Command(root+"/deploy/release/image", "csi-attacher", "registry.invalid/csi-attacher", "1.0.0",
			filepath.Join(dir, "metadata"))
		command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SBOM="+sbom, "SOURCE=https://x.invalid")
		output, err := command.CombinedOutput()
		if (err == nil) != test.accepted {
			t.Errorf("with %.20q: %v\n%s", test.sbom, err, output)
		}
		if reason := "does not name the crates"; !test.accepted && !strings.Contains(string(output), reason) {
			t.Errorf("%q is not in\n%s", reason, output)
		}
	}
}
