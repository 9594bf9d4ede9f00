package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

const (
	// allClients makes it a failure that a language is not here.
	allClients = "FLEXIQ_TEST_CLIENTS"
	// notTried names a file that gets a line for each thing that was not tried for
	// want of a program, because go test does not tell of what it skips.
	notTried = "FLEXIQ_TEST_NOT_TRIED"
)

// examples is the folder of the programs that the producers' page shows.
var examples = filepath.Join("..", "..", "docs", "producers")

// example is a producer that is none of ours, or at least is outside of this
// process: it makes as many calls as it is told, one after the other, and prints
// a line for each.
type example struct {
	name  string
	file  string // in the folder of examples, as the page shows it
	lang  string // of the code block
	needs []string
	nats  bool // speaks NATS, not HTTP
	run   func(made builds, calls string) *exec.Cmd
	read  func(t *testing.T, out []byte) []fate // nil: a line for each call
}

// builds are the folders in which programs were made ready, and why one could not be.
type builds struct{ programs, node, noNode, noModules string }

// fate is what became of a call.
type fate struct {
	id      string // of the job, else empty
	reason  string
	details map[string]string
}

var clients = []example{
	{name: "Python over HTTP", file: "python/producer.py", lang: "python", needs: []string{"python3"}, run: script("python3", "python/producer.py")},
	{name: "Node over HTTP", file: "node/http.mjs", lang: "js", needs: []string{"node"}, run: script("node", "node/http.mjs")},
	{name: "Node over NATS", file: "node/nats.mjs", lang: "js", needs: []string{"node", "npm"}, nats: true, run: func(made builds, calls string) *exec.Cmd {
		return exec.Command("node", filepath.Join(made.node, "nats.mjs"), calls)
	}},
	{name: "Java over HTTP", file: "java/Producer.java", lang: "java", needs: []string{"java", "javac"}, run: script("java", "java/Producer.java")},
	{name: "curl", file: "curl/producer.sh", lang: "sh", needs: []string{"sh", "curl", "sed"}, run: script("sh", "curl/producer.sh")},
	{name: "grpc-go", file: "grpc/main.go", lang: "go", run: program("grpc")},
	{name: "the Go client", file: "goclient/main.go", lang: "go", nats: true, run: program("goclient")},
	{name: "fq", file: "fq/producer.sh", lang: "sh", needs: []string{"sh", "seq"}, nats: true, read: readOutcomes, run: func(made builds, calls string) *exec.Cmd {
		cmd := script("sh", "fq/producer.sh")(made, calls)
		cmd.Env = append(os.Environ(), "PATH="+made.programs+string(os.PathListSeparator)+os.Getenv("PATH"))
		return cmd
	}},
}

func script(interpreter, file string) func(builds, string) *exec.Cmd {
	return func(_ builds, calls string) *exec.Cmd {
		return exec.Command(interpreter, filepath.Join(examples, file), calls)
	}
}

func program(name string) func(builds, string) *exec.Cmd {
	return func(made builds, calls string) *exec.Cmd {
		return exec.Command(filepath.Join(made.programs, name), calls)
	}
}

// TestClientsFloodOneNamespace lets producers in several languages fill one
// namespace together: it holds what its limit says, and each of them is refused
// for the same reason with the same numbers.
func TestClientsFloodOneNamespace(t *testing.T) {
	const most, calls = 500, 120
	made := build(t) // before there is another home, in which go would have no cache
	home(t)
	d := inProcess(t)
	c := dial(t, d.opts.DataDir, "default", "")
	limit(t, c, &flexiqv1.NamespaceQuota{MaxPending: proto.Int64(most)})
	token := tokensOf(t, d)["default"]
	var ready []example
	for _, e := range clients {
		if why := e.missing(made); why == "" {
			ready = append(ready, e)
		} else if skipped(t, e.name+": "+why); os.Getenv(allClients) != "" {
			t.Errorf("%s is not tried: %s", e.name, why)
		}
	}

	told := map[string]bool{}
	admitted := 0
	take := func(fates []fate) {
		for _, f := range fates {
			switch {
			case f.id != "":
				admitted++
			default:
				text, _ := json.Marshal(f.details) // keys in order
				told[f.reason+" "+string(text)] = true
			}
		}
	}
	for _, e := range ready { // there is room for each
		fates := e.start(t, d, token, made, 1)
		if len(fates) != 1 || fates[0].id == "" {
			t.Fatalf("%s, with room: %v", e.name, fates)
		}
		if j, err := c.Job(t.Context(), fates[0].id); err != nil || j.GetTask() != "mail" || j.GetStatus() != "pending" {
			t.Errorf("%s: its job is %v, %v", e.name, j, err)
		}
		take(fates)
	}
	var mu sync.Mutex
	var together sync.WaitGroup
	for _, e := range ready {
		together.Go(func() {
			fates := e.start(t, d, token, made, calls)
			mu.Lock()
			defer mu.Unlock()
			if len(fates) != calls {
				t.Errorf("%s tells of %d calls, want %d", e.name, len(fates), calls)
			}
			take(fates)
		})
	}
	together.Wait()
	if few := len(ready)*(calls+1) < most; few {
		t.Logf("%d clients are too few: the rest of the namespace is filled for them", len(ready))
		enqueue(t, c, most-admitted)
		admitted = most
	}
	holds(t, c, most, 0, 0, 0)
	if admitted != most {
		t.Errorf("%d calls were told that their job is there, want %d", admitted, most)
	}
	for _, e := range ready { // there is none for anybody
		fates := e.start(t, d, token, made, 1)
		if len(fates) != 1 || fates[0].id != "" {
			t.Errorf("%s, without room: %v", e.name, fates)
		}
		take(fates)
	}
	want := `QUEUE_FULL {"asked":"1","cap":"500","current":"500","estimate":"true","fits":"0","limit":"max_pending","namespace":"default","retry_after_ms":"1000","revision":"1"}`
	if got := slices.Sorted(maps.Keys(told)); !slices.Equal(got, []string{want}) {
		t.Errorf("refusals are\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	holds(t, c, most, 0, 0, 0)
}

// missing tells what an example needs and is not here.
func (e example) missing(made builds) string {
	for _, program := range e.needs {
		if _, err := exec.LookPath(program); err != nil {
			return "there is no " + program + " here"
		}
	}
	switch {
	case slices.Contains(e.needs, "npm"):
		return made.noNode
	case e.name == "grpc-go":
		return made.noModules
	}
	return ""
}

// start runs an example and returns what it tells of its calls.
func (e example) start(t *testing.T, d *daemon, token string, made builds, calls int) []fate {
	t.Helper()
	cmd := e.run(made, fmt.Sprint(calls))
	server := d.httpURL
	if e.nats {
		server = d.natsURL
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "FLEXIQ_SERVER="+server, "FLEXIQ_TOKEN="+token)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if e.read != nil {
		return e.read(t, out) // it fails when one was refused
	}
	if err != nil {
		t.Errorf("%s: %v\n%s%s", e.name, err, out, &stderr)
		return nil
	}
	var fates []fate
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if line == "" {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case word == "pending":
			fates = append(fates, fate{id: rest})
		default:
			f := fate{reason: word}
			if err := json.Unmarshal([]byte(rest), &f.details); err != nil {
				t.Errorf("%s prints %q: %v", e.name, line, err)
			}
			fates = append(fates, f)
		}
	}
	return fates
}

// readOutcomes reads what `fq enqueue --lines --output json` prints.
func readOutcomes(t *testing.T, out []byte) (fates []fate) {
	t.Helper()
	var all struct {
		Outcomes []struct {
			Results []struct {
				Job struct{ ID string }
			}
			Error *struct {
				Reason  string
				Details map[string]string
			}
		}
	}
	if err := json.Unmarshal(out, &all); err != nil {
		t.Errorf("fq prints %q: %v", out, err)
	}
	for _, o := range all.Outcomes {
		if o.Error != nil {
			fates = append(fates, fate{reason: o.Error.Reason, details: o.Error.Details})
			continue
		}
		fates = append(fates, fate{id: o.Results[0].Job.ID})
	}
	return fates
}

// noModule are the words of go when it cannot load a module.
var noModule = regexp.MustCompile(`dial tcp|no such host|module lookup disabled|proxy|connection refused`)

// build makes the compiled examples and fq, and installs what Node's need.
func build(t *testing.T) builds {
	t.Helper()
	made := builds{programs: t.TempDir()}
	gobuild := func(dir string, packages ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", made.programs + string(filepath.Separator)}, packages...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := gobuild(filepath.Join("..", ".."), "./cmd/fq"); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if out, err := gobuild(examples, "./goclient"); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if out, err := gobuild(examples, "./grpc"); err != nil && noModule.MatchString(out) {
		made.noModules = "grpc-go cannot be loaded here"
	} else if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	made.node, made.noNode = npmInstall(t, filepath.Join(examples, "node"))
	return made
}

// skipped writes down what is not tried.
func skipped(t *testing.T, what string) {
	t.Helper()
	t.Logf("not tried: %s", what)
	name := os.Getenv(notTried)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "not tried, %s: %s\n", t.Name(), what)
}

// TestProducersPageShowsWhatRuns: the page's programs are those that the tests run.
func TestProducersPageShowsWhatRuns(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(examples, "..", "producers.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range clients {
		text, err := os.ReadFile(filepath.Join(examples, e.file))
		if err != nil {
			t.Fatal(err)
		}
		if block := "```" + e.lang + "\n" + string(text) + "```\n"; !strings.Contains(string(page), block) {
			t.Errorf("docs/producers.md does not show docs/producers/%s as it is:\n%s", e.file, block)
		}
	}
}
