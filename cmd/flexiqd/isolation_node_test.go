package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// offline are the words of npm when it cannot reach a registry.
var offline = regexp.MustCompile(`ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|network`)

// TestIsolationOverNATSFromNode tries with NATS's client for Node what
// TestIsolationOverNATS tries from Go. Where there is no Node, or no registry to
// install the client from, the test says so and is skipped.
func TestIsolationOverNATSFromNode(t *testing.T) {
	dir := installNode(t)
	modes(t, func(t *testing.T, d *daemon) {
		in := newIsolation(t, d)
		in.untouched(func() { in.tryNode(dir, in.natsCases()) })
	})
}

// installNode copies the script and installs the client that it needs.
func installNode(t *testing.T) string {
	t.Helper()
	dir, why := npmInstall(t, filepath.Join("testdata", "node"))
	if why != "" {
		skipped(t, why)
		t.Skipf("nothing is tried from Node: %s", why)
	}
	return dir
}

// npmInstall copies a folder of scripts and installs what they need. Where that
// cannot be, it tells why.
func npmInstall(t *testing.T, folder string) (dir, why string) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", "there is no " + program + " here"
		}
	}
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		if offline.Match(out) {
			return "", "npm reaches no registry here"
		}
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir, ""
}

func (in *isolation) tryNode(dir string, cases map[string]natsCase) {
	in.t.Helper()
	plan, err := json.Marshal(map[string]any{"url": in.d.natsURL, "cases": cases})
	if err != nil {
		in.t.Fatal(err)
	}
	file := filepath.Join(in.t.TempDir(), "plan.json")
	if err := os.WriteFile(file, plan, 0o600); err != nil {
		in.t.Fatal(err)
	}
	node := exec.CommandContext(in.t.Context(), "node", "isolation.mjs", file)
	node.Dir = dir
	out, err := node.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		in.t.Fatalf("node: %v\n%s", err, exit.Stderr)
	} else if err != nil {
		in.t.Fatal(err)
	}
	var results map[string]struct {
		Denied   []string          `json:"denied"`
		Answered map[string]string `json:"answered"`
	}
	if err := json.Unmarshal(out, &results); err != nil {
		in.t.Fatal(err)
	}
	for name, c := range cases {
		var want []string
		for _, s := range c.Publish {
			want = append(want, "publish "+s)
		}
		for _, s := range c.Subscribe {
			want = append(want, "subscription "+s)
		}
		got := results[name]
		if missed, extra := without(want, got.Denied), without(got.Denied, want); len(missed)+len(extra) > 0 {
			in.t.Errorf("%s: not forbidden are %v, and forbidden are %v beside", name, missed, extra)
		}
		for _, s := range c.Answered {
			if reason, ok := got.Answered[s]; !ok || slices.Contains([]string{"UNAUTHENTICATED", "INTERNAL"}, reason) {
				in.t.Errorf("%s: %s is answered with %q (%t)", name, s, reason, ok)
			}
		}
	}
}
