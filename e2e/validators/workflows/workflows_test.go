// Package workflows tests the workflows and scripts of the repository with actionlint and shellcheck.
package workflows

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
)

// A workflow has errors that only GitHub would report otherwise.
func TestWorkflowsAreLintClean(t *testing.T) {
	var output bytes.Buffer
	// Checks `run:` scripts too where shellcheck is installed.
	shellcheck, _ := exec.LookPath("shellcheck")
	linter, err := actionlint.NewLinter(&output, &actionlint.LinterOptions{Shellcheck: shellcheck})
	if err != nil {
		t.Fatal(err)
	}
	found, err := linter.LintFiles(workflows(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) > 0 {
		t.Error(output.String())
	}
}

const root = "../../.."

var uses = regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
var pinned = regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

func TestActionsArePinnedByCommit(t *testing.T) {
	count := 0
	for _, workflow := range workflows(t) {
		text, err := os.ReadFile(workflow)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range uses.FindAllStringSubmatch(string(text), -1) {
			count++
			// A workflow of this repository has the commit of its caller.
			if !pinned.MatchString(use[1]) && !strings.HasPrefix(use[1], "./.github/workflows/") {
				t.Errorf("%s: %s must be pinned as OWNER/NAME@COMMIT # vX.Y.Z", workflow, use[1])
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d uses of actions were found", count)
	}
}

// Without a named shell GitHub runs `bash -e`, where a pipe hides the failure of its first command.
func TestPipesOfWorkflowsFail(t *testing.T) {
	pipe := regexp.MustCompile(`(?m)^[^#\n]* \| `)
	count := 0
	for _, workflow := range workflows(t) {
		text, err := os.ReadFile(workflow)
		if err != nil {
			t.Fatal(err)
		}
		if !pipe.Match(text) {
			continue
		}
		count++
		if !strings.Contains(string(text), "\ndefaults:\n  run:\n    shell: bash\n") {
			t.Errorf("%s has a pipe, and no `defaults: {run: {shell: bash}}`", workflow)
		}
	}
	if count == 0 {
		t.Error("no workflow has a pipe")
	}
}

// Dependabot updates the modules that its configuration lists.
func TestDependabotCoversEveryGoModule(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(root, ".github/dependabot.yml"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := exec.Command("git", "-C", root, "ls-files", "*go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(listed))
	if len(modules) < 5 {
		t.Fatalf("only %v were found", modules)
	}
	for _, module := range modules {
		directory := "/" + filepath.Dir(module)
		if !regexp.MustCompile(regexp.QuoteMeta(directory) + `[],]`).Match(config) {
			t.Errorf("dependabot.yml does not list %s", directory)
		}
	}
}

// Workflows and documents name the files and the programs of the tree.
func TestWorkflowsNameFilesThatExist(t *testing.T) {
	named := regexp.MustCompile(`(?:^|[\s"=])((?:deploy|e2e|attacher|\.ci)/[\w./-]*\w)`)
	count := 0
	for _, workflow := range workflows(t) {
		text, err := os.ReadFile(workflow)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(text), -1) {
			count++
			if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
				t.Errorf("%s: %v", workflow, err)
			}
		}
	}
	if count < 10 {
		t.Errorf("only %d files were found", count)
	}
}

// The recipe of deploy/README.md for kind is what the workflow runs, which may add flags.
func TestKindRecipeIsWhatTheWorkflowRuns(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "deploy/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	workflow, err := os.ReadFile(filepath.Join(root, ".github/workflows/kind.yml"))
	if err != nil {
		t.Fatal(err)
	}
	chart, err := os.ReadFile(filepath.Join(root, "deploy/charts/csi-mock-driver/Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^appVersion: (.*)$`).FindSubmatch(chart)
	if version == nil {
		t.Fatal("the chart has no appVersion")
	}
	// The workflow takes the version from the chart, and quotes variables.
	spelled := strings.NewReplacer(`"`, "", "$version", string(version[1]))
	var run []string
	for _, line := range strings.Split(string(workflow), "\n") {
		run = append(run, strings.TrimSpace(spelled.Replace(line)))
	}
	_, recipe, found := strings.Cut(string(readme), "```console\nsudo install")
	recipe, _, ended := strings.Cut("sudo install"+recipe, "```")
	if !found || !ended {
		t.Fatal("the README has no recipe for kind")
	}
	for _, line := range strings.Split(strings.TrimSpace(recipe), "\n") {
		line = strings.TrimSpace(line)
		isRun := func(command string) bool { return command == line || strings.HasPrefix(command, line+" ") }
		if !slices.ContainsFunc(run, isRun) {
			t.Errorf("the workflow does not run %q", line)
		}
	}
}

// ShellCheck is required where .ci/run installed it.
func TestScriptsAreShellcheckClean(t *testing.T) {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		if os.Getenv("REQUIRE_ALL") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	listed, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Fatal(err)
	}
	var scripts []string
	for _, file := range strings.Split(strings.TrimSpace(string(listed)), "\n") {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err == nil && (bytes.HasPrefix(text, []byte("#!/usr/bin/env bash")) || bytes.HasPrefix(text, []byte("#!/bin/"))) {
			scripts = append(scripts, filepath.Join(root, file))
		}
	}
	if len(scripts) < 5 {
		t.Fatalf("only %v were found", scripts)
	}
	checked, err := exec.Command(shellcheck, append([]string{"--severity=warning"}, scripts...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, checked)
	}
}

func workflows(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(found) < 4 {
		t.Fatalf("found %v: %v", found, err)
	}
	return found
}
