package flexiq_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "flexiq/"

// layer is a set of packages and what of ours they may import, below the
// module's path. A pattern that ends in /... covers what lies below it.
type layer struct {
	name     string
	packages []string
	may      []string
	mustNot  []string // of other modules
}

var (
	pure     = []string{"pkg/namespace", "pkg/fault", "pkg/quota", "pkg/job", "pkg/schedule"}
	contract = []string{"pkg/store", "pkg/store/admit"}
	means    = []string{
		"pkg/auth", "pkg/rpc", "pkg/bus", "pkg/configcache", "pkg/lease", "pkg/batch", "pkg/telemetry", "pkg/wire", "pkg/events", "pkg/api/...",
	}
	servers   = []string{"github.com/nats-io/nats-server/v2/..."}
	databases = []string{"zombiezen.com/...", "modernc.org/...", "github.com/jackc/...", "github.com/redis/..."}
)

// layers hold every package of the module; the first that names a package is its own.
var layers = []layer{
	{"generated", []string{"pkg/api/..."}, nil, slices.Concat(servers, databases)},
	{"names and errors", []string{"pkg/namespace", "pkg/fault"}, nil, slices.Concat(servers, databases)},
	{"pure", pure, []string{"pkg/namespace", "pkg/fault"}, slices.Concat(servers, databases)},
	{"the contract", []string{"pkg/store"}, pure, slices.Concat(servers, databases)},
	{"steps of schemas", []string{"pkg/store/migration"}, nil, slices.Concat(servers, databases)},
	{"the verdict", []string{"pkg/store/admit"}, append([]string{"pkg/store"}, pure...), slices.Concat(servers, databases)},
	// The reference decides by itself: it must not share a decision with admit.
	{"the reference", []string{"pkg/store/internal/model"}, append([]string{"pkg/store"}, pure...), slices.Concat(servers, databases)},
	{"the suite", []string{"pkg/store/storetest"}, append([]string{"pkg/store", "pkg/store/internal/model"}, pure...), slices.Concat(servers, databases)},
	{"backends", []string{"pkg/store/..."}, slices.Concat(pure, contract, []string{"pkg/store/migration"}), servers},
	{"the embedded server's door", []string{"pkg/auth/embedded"}, slices.Concat(pure, contract, means), databases},
	{"an outside server's door", []string{"pkg/auth/callout"}, slices.Concat(pure, means), slices.Concat(servers, databases)},
	{"tests' servers", []string{"pkg/testkit"}, nil, nil},
	{"means", means, slices.Concat(pure, []string{"pkg/store"}, means), slices.Concat(servers, databases)},
	{"the client", []string{"pkg/client"}, slices.Concat(pure, means), slices.Concat(servers, databases)},
	{"services", []string{"services/..."}, slices.Concat(pure, []string{"pkg/store"}, means), slices.Concat(servers, databases)},
	{"the command line", []string{"cmd/fq"}, slices.Concat(pure, means, []string{"pkg/client"}), slices.Concat(servers, databases)},
	{"the daemon", []string{"cmd/flexiqd"}, []string{"pkg/...", "services/..."}, nil},
}

// notInProduction are packages that only tests may import.
var notInProduction = []string{"pkg/testkit", "pkg/store/storetest", "pkg/store/internal/model"}

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
	if len(all) < len(layers) {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}

func covers(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if below, ok := strings.CutSuffix(p, "/..."); ok {
			return path == below || strings.HasPrefix(path, below+"/")
		}
		return path == p
	})
}

func layerOf(path string) *layer {
	for i := range layers {
		if covers(layers[i].packages, path) {
			return &layers[i]
		}
	}
	return nil
}

// TestImportsPointOneWay keeps the layers of CONTRIBUTING.md.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		l := layerOf(path)
		if l == nil {
			t.Errorf("%s is in no layer: say in this test what it may import", path)
			continue
		}
		for _, imported := range p.Imports {
			own, isOurs := strings.CutPrefix(imported, module)
			switch {
			case isOurs && !covers(l.may, own):
				t.Errorf("%s (%s) imports %s", path, l.name, own)
			case isOurs && covers(notInProduction, own) && !covers(notInProduction, path):
				t.Errorf("%s imports %s, which is for tests", path, own)
			case !isOurs && covers(l.mustNot, imported):
				t.Errorf("%s (%s) imports %s", path, l.name, imported)
			}
		}
	}
}

// TestReach keeps what is heavy out of what should be light, however many
// imports lie between: the command line has no database and no server in it,
// and a service runs without either.
func TestReach(t *testing.T) {
	t.Parallel()
	light := []string{"cmd/fq", "pkg/client", "services/...", "pkg/bus", "pkg/rpc", "pkg/auth"}
	heavy := slices.Concat(servers, databases, []string{module + "pkg/store/sqlite", module + "pkg/store/postgres", module + "pkg/store/redis"})
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		for _, dep := range p.Deps {
			if covers(light, path) && covers(heavy, dep) {
				t.Errorf("%s reaches %s", path, dep)
			}
			if path == "cmd/fq" && strings.HasPrefix(dep, module+"services/") {
				t.Errorf("%s reaches %s", path, dep)
			}
		}
	}
}

// TestPackageComments wants exactly one in each package.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		var with []string
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil && !strings.HasPrefix(f.Doc.Text(), "Code generated") {
				with = append(with, name)
			}
		}
		if len(with) != 1 {
			t.Errorf("%s has %d package comments, want one: %v", p.ImportPath, len(with), with)
		}
	}
}
