// Package release makes a release candidate with the scripts of the release workflow.
package release

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

const root = "../../.."

var (
	buildHelm sync.Once
	builtHelm string
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "helm")
	if err != nil {
		panic(err)
	}
	builtHelm = filepath.Join(dir, "helm")
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

var programs = []string{"csi-attacher", "csi-mock-driver", "kubectl-csi_attach"}
var architectures = []string{"amd64", "arm64"}

// What a release consists of, besides its notes. Archives of the images' layouts are not part of it: the images are in a registry.
func filesOfARelease(version string) []string {
	files := []string{"manuals.tar.gz", "SHA256SUMS", "SHA256SUMS-charts"}
	for _, program := range programs {
		files = append(files, program+"-NOTICES.txt")
		for _, architecture := range architectures {
			name := fmt.Sprintf("%s-linux-%s", program, architecture)
			files = append(files, name, name+".cdx.json")
		}
	}
	for _, chart := range []string{"csi-attacher", "csi-mock-driver"} {
		files = append(files, fmt.Sprintf("%s-%s.tgz", chart, version))
	}
	slices.Sort(files)
	return files
}

// Compiling the programs, and collecting their licences, takes minutes: placeholders stand for them.
func TestRehearsalMakesACompleteRelease(t *testing.T) {
	version := workspaceVersion(t)
	out := t.TempDir()
	listed, err := rehearse(t, inputs(t), out)
	if err != nil {
		t.Fatalf("%v\n%s", err, listed)
	}
	t.Logf("the files of a release:\n%s", listed)
	if found := names(t, filepath.Join(out, "dist")); !slices.Equal(found, filesOfARelease(version)) {
		t.Errorf("the release has\n%v\nnot\n%v", found, filesOfARelease(version))
	}
	if notes := read(t, filepath.Join(out, "notes.md")); !strings.Contains(notes, "- ") || strings.Contains(notes, "\n## [") {
		t.Errorf("the notes are\n%s", notes)
	}
	for _, program := range programs[:2] {
		layout := filepath.Join(out, "images", program)
		digest := digestOf(t, layout)
		layers := 0
		for _, blob := range names(t, filepath.Join(layout, "blobs", "sha256")) {
			text := read(t, filepath.Join(layout, "blobs", "sha256", blob))
			if strings.Contains(text, "placeholder of "+program) {
				layers++
				if !strings.Contains(text, "NOTICES.txt") || !strings.Contains(text, "licences of "+program) {
					t.Errorf("a layer of %s has no licences", program)
				}
			}
		}
		if layers != len(architectures) {
			t.Errorf("%s has %d layers", program, layers)
		}
		checkChart(t, filepath.Join(out, "dist", fmt.Sprintf("%s-%s.tgz", program, version)), program, digest)
	}
}

// checkChart checks a package: all images by digest, those of the project by that of the built image, and no placeholder.
func checkChart(t *testing.T, file, program, digest string) {
	t.Helper()
	loaded, err := loader.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if program == "csi-attacher" {
		values = map[string]any{
			"prometheusRule": map[string]any{"enabled": true},
			"dashboard":      map[string]any{"enabled": true},
			"finalizersOnly": map[string]any{"enabled": true},
		}
	}
	text := render(t, loaded, values)
	for _, image := range regexp.MustCompile(`(?m)^\s*(?:- )?image: (.*)$`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(image[1], "@sha256:") {
			t.Errorf("%s: %s has no digest", program, image[1])
		}
	}
	if own := "registry.invalid/" + program + "@" + digest; !strings.Contains(text, own) {
		t.Errorf("%s does not name %s:\n%s", program, own, text)
	}
	if strings.Contains(text, "csi-attacher.invalid") {
		t.Errorf("%s has the placeholder of the runbook", program)
	}
	if program == "csi-attacher" && !strings.Contains(text, "runbook_url: https://registry.invalid/docs/alerts.md#csiattachernoleader") {
		t.Errorf("the alerts do not have the address of the runbook")
	}
}

func render(t *testing.T, loaded *chart.Chart, values map[string]any) string {
	t.Helper()
	options := common.ReleaseOptions{Name: "x", Namespace: "x", Revision: 1, IsInstall: true}
	rendered, err := util.ToRenderValues(loaded, values, options, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(loaded, rendered)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(slices.Collect(maps.Values(files)), "\n")
}

// A second rehearsal gives the same files. Helm's packages have the times of their creation.
func TestRehearsalIsReproducible(t *testing.T) {
	given := inputs(t)
	var sums []string
	for range 2 {
		out := t.TempDir()
		if listed, err := rehearse(t, given, out); err != nil {
			t.Fatalf("%v\n%s", err, listed)
		}
		sums = append(sums, read(t, filepath.Join(out, "dist", "SHA256SUMS")))
	}
	if sums[0] != sums[1] {
		t.Errorf("%s\ndiffers from\n%s", sums[0], sums[1])
	}
}

func TestRehearsalFailsWithoutAPart(t *testing.T) {
	for _, part := range []string{
		"binaries/arm64/csi-mock-driver", "binaries/amd64/csi-attacher.cdx.json", "notices/kubectl-csi_attach.txt", "manuals",
	} {
		given := inputs(t)
		if err := os.RemoveAll(filepath.Join(given, part)); err != nil {
			t.Fatal(err)
		}
		if listed, err := rehearse(t, given, t.TempDir()); err == nil {
			t.Errorf("a release without %s was made:\n%s", part, listed)
		}
	}
}

// An image that a chart names must not reach a release by tag.
func TestChartsNeedADigestForEachImage(t *testing.T) {
	pins := filepath.Join(t.TempDir(), "pins")
	line := "csi-attacher registry.invalid/csi-attacher sha256:" + strings.Repeat("1", 64) + "\n"
	if err := os.WriteFile(pins, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(root+"/deploy/release/charts", "1.0.0", pins, "https://x.invalid", t.TempDir())
	command.Env = append(os.Environ(), "HELM="+helm(t))
	output, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "no digest for") {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestCheckNamesWhatARealReleaseLacks(t *testing.T) {
	output, err := exec.Command(root+"/deploy/release/check", "99.0.0").CombinedOutput()
	if err == nil {
		t.Fatal("version 99.0.0 is ready")
	}
	for _, expected := range []string{
		"Cargo.toml has no line", "csi-mock-driver/Chart.yaml has no line", "CHANGELOG.md has no section [99.0.0]",
		"published yet", "csi-attacher.invalid",
	} {
		if !strings.Contains(string(output), expected) {
			t.Errorf("%q is not in\n%s", expected, output)
		}
	}
}

// === helpers ===

// inputs writes placeholders for what takes minutes to build.
func inputs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"manuals/man1/csi-attacher.1": "a manual"}
	for _, program := range programs {
		files["notices/"+program+".txt"] = "licences of " + program
		for _, architecture := range architectures {
			path := "binaries/" + architecture + "/" + program
			files[path] = "placeholder of " + program + " for " + architecture
			files[path+".cdx.json"] = "{}"
		}
	}
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func rehearse(t *testing.T, given, out string) (string, error) {
	t.Helper()
	command := exec.Command(root+"/deploy/release/rehearse", out)
	command.Env = append(os.Environ(), "HELM="+helm(t), "SOURCE_DATE_EPOCH=1",
		"BINARIES="+filepath.Join(given, "binaries"), "NOTICES="+filepath.Join(given, "notices"),
		"MANUALS="+filepath.Join(given, "manuals"))
	output, err := command.CombinedOutput()
	return string(output), err
}

// helm builds the program, or returns the one that HELM names.
func helm(t *testing.T) string {
	t.Helper()
	if named := os.Getenv("HELM"); named != "" {
		return named
	}
	buildHelm.Do(func() {
		// With the flags of the harness, which builds it too.
		command := exec.Command("go", "build", "-mod=readonly", "-trimpath", "-o", builtHelm, "helm.sh/helm/v4/cmd/helm")
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	})
	return builtHelm
}

func digestOf(t *testing.T, layout string) string {
	t.Helper()
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(read(t, filepath.Join(layout, "index.json")))
	if digest == "" {
		t.Fatalf("%s has no digest", layout)
	}
	return digest
}

func workspaceVersion(t *testing.T) string {
	t.Helper()
	version := regexp.MustCompile(`(?m)^version = "(.*)"$`).FindStringSubmatch(read(t, root+"/Cargo.toml"))
	if version == nil {
		t.Fatal("Cargo.toml has no version")
	}
	return version[1]
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	slices.Sort(found)
	return found
}

// read returns the text of a file, uncompressed.
func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if unzipped, err := gzip.NewReader(bytes.NewReader(content)); err == nil {
		if content, err = io.ReadAll(unzipped); err != nil {
			t.Fatal(err)
		}
	}
	return string(content)
}
