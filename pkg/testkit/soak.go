package testkit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// SoakFolder is where soaks write their artifacts, below the module's folder.
const SoakFolder = "bench/results/soak"

// Soak is a long test whose outcome is kept as a text beside the code: where it
// ran, what it measured, and whether it passed. Its methods are safe for
// concurrent use.
type Soak struct {
	t     testing.TB
	path  string
	head  string
	began time.Time

	mu    sync.Mutex
	lines []string
}

// StartSoak begins the artifact of a soak, SoakFolder/name.txt. What says in a
// sentence what the soak shows. Until the test ends the artifact says that it is
// unfinished, so that a run that dies leaves no old success behind.
func StartSoak(t testing.TB, name, what string) *Soak {
	t.Helper()
	root, err := moduleFolder()
	if err != nil {
		t.Fatal(err)
	}
	return startSoak(t, root, filepath.Join(root, SoakFolder), name, what)
}

func startSoak(t testing.TB, root, folder, name, what string) *Soak {
	t.Helper()
	s := &Soak{t: t, path: filepath.Join(folder, name+".txt"), began: time.Now()}
	s.head = fmt.Sprintf("%s: %s\n\n%s%s%s%s", name, what,
		soakLine("commit", commit(root)), soakLine("began", s.began.UTC().Format("2006-01-02 15:04 MST")),
		soakLine("machine", machine()), soakLine("folder", "temporary files on "+fileSystem(os.TempDir())))
	s.write("UNFINISHED")
	t.Cleanup(s.end)
	return s
}

// Figure notes something that was measured or chosen.
func (s *Soak) Figure(name, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, soakLine(name, fmt.Sprintf(format, args...)))
}

// Durations notes the median, the 99th percentile and the most of a sample.
func (s *Soak) Durations(name string, sample []time.Duration) {
	if len(sample) == 0 {
		s.Figure(name, "no sample")
		return
	}
	slices.Sort(sample)
	at := func(percent int) time.Duration {
		return sample[(len(sample)-1)*percent/100].Round(10 * time.Microsecond)
	}
	s.Figure(name, "p50 %s, p99 %s, most %s of %d", at(50), at(99), at(100), len(sample))
}

// Check notes whether a bound held, with what it was held against, and fails the
// test when it did not.
func (s *Soak) Check(ok bool, format string, args ...any) {
	s.t.Helper()
	said := fmt.Sprintf(format, args...)
	if !ok {
		s.t.Errorf("does not hold: %s", said)
	}
	s.Figure(map[bool]string{true: "holds", false: "BROKEN"}[ok], "%s", said)
}

func (s *Soak) end() {
	s.Figure("took", "%s", time.Since(s.began).Round(100*time.Millisecond))
	verdict := "PASS"
	if s.t.Failed() {
		verdict = "FAIL"
	} else if s.t.Skipped() {
		verdict = "SKIPPED"
	}
	s.write(verdict)
}

func (s *Soak) write(verdict string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.head + "\n" + strings.Join(s.lines, "") + "\n" + verdict + "\n"
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		s.t.Error(err)
		return
	}
	if err := os.WriteFile(s.path, []byte(text), 0o644); err != nil {
		s.t.Error(err)
	}
}

func soakLine(name, value string) string { return fmt.Sprintf("%-24s %s\n", name, value) }

// moduleFolder finds the folder of go.mod from that of the test.
func moduleFolder() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	path := strings.TrimSpace(string(out))
	if path == "" || path == os.DevNull {
		return "", fmt.Errorf("a soak runs inside the module's folder")
	}
	return filepath.Dir(path), nil
}

// commit names the commit that the files are of, and says when they were changed
// since. The artifacts themselves do not count.
func commit(root string) string {
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	id := git("rev-parse", "--short=12", "HEAD")
	if id == "" {
		return "unknown"
	}
	if git("status", "--porcelain", "--", ".", ":!bench/results") != "" {
		id += " with changes"
	}
	return id
}

// machine describes where this runs.
func machine() string {
	parts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if model := procField("/proc/cpuinfo", "model name"); model != "" {
		parts[0] += " " + model
	}
	var kib int64
	if n, _ := fmt.Sscan(procField("/proc/meminfo", "MemTotal"), &kib); n == 1 {
		parts = append(parts, fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20)))
	}
	return strings.Join(append(parts, runtime.GOOS+"/"+runtime.GOARCH, runtime.Version()), ", ")
}

// procField reads the first value of a name in a file of "name: value" lines.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "" // another system
	}
	for line := range bytes.Lines(text) {
		if k, v, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(k)) == name {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// fileSystem names the kind of file system of a folder: in memory a flush to disk
// costs nothing, which figures must be read with.
func fileSystem(dir string) string {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "an unknown file system"
	}
	kind, longest := "an unknown file system", -1
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || len(fields[1]) < longest {
			continue
		}
		if dir == fields[1] || strings.HasPrefix(dir, strings.TrimSuffix(fields[1], "/")+"/") {
			kind, longest = fields[2], len(fields[1])
		}
	}
	return kind
}
