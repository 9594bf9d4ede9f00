package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"flexiq/pkg/auth"
	"flexiq/pkg/testkit"
)

// TestEveryProducerPathIsTried finds, in the program itself, what can make a
// pending job, and wants each in the table of paths:
//
//   - the operations of the store that move jobs,
//   - the functions of the services that make a call for Admit or Replay,
//   - the methods whose handlers reach one of those operations,
//   - the HTTP routes beside the methods, and the NATS subjects that a running
//     daemon listens on.
func TestEveryProducerPathIsTried(t *testing.T) {
	home(t)
	found := map[string]bool{}
	for _, op := range storeOperations(t) {
		found["store "+op] = true
	}
	makers := map[string]bool{} // methods that make jobs
	for _, dir := range serviceFolders(t) {
		c := readPackage(t, dir)
		for name := range c.makers() {
			found["func "+filepath.Base(dir)+"."+name] = true
		}
		for name := range c.methods() {
			makers[name] = true
			found["rpc "+name] = true
		}
	}
	for _, pattern := range routes(t) {
		found["route "+pattern] = true
	}
	for _, subject := range heard(t, inProcess(t), makers) {
		found["subject "+subject] = true
	}
	tried := map[string]bool{}
	for _, p := range paths {
		for _, from := range p.from {
			tried[from] = true
		}
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		if why, ok := makesNothing[what]; !tried[what] && !ok {
			t.Errorf("%q may make pending jobs and no path of the table in paths_test.go goes through it: add a path with it in its from, "+
				"which says how to try it and what a refused attempt is told; or, if it makes no job, say so in makesNothing", what)
		} else if tried[what] && ok {
			t.Errorf("%q is in the table, and makesNothing says %q of it", what, why)
		}
	}
	for _, list := range []map[string]bool{tried, keysOf(makesNothing)} {
		for _, what := range slices.Sorted(maps.Keys(list)) {
			if !found[what] {
				t.Errorf("the table names %q, which is not in the program any more", what)
			}
		}
	}
}

func keysOf(m map[string]string) map[string]bool {
	keys := map[string]bool{}
	for k := range m {
		keys[k] = true
	}
	return keys
}

// makesNothing is what was looked at and makes no pending job.
var makesNothing = map[string]string{
	"store Cancel":     "ends jobs",
	"store Heartbeat":  "extends leases",
	"store Ready":      "reads",
	"store DeleteDead": "deletes",
	"store Retryable":  "reads",

	"route /":             "the methods, which stand for themselves",
	"route GET /healthz":  "reads",
	"route GET /readyz":   "reads",
	"route GET /metrics":  "reads",
	"route grpc.health":   "reads",
	"subject fqi.v1.>":    "hints: they tell, and carry no authority",
	"subject its inboxes": "answers to the daemon's own requests",

	"subject $KV.FQ_LEASE.retention": "the lease of the retention leader",
}

// storeOperations are the operations of the parts of the store's contract that
// move jobs. A part that is new must be put on one side here.
func storeOperations(t *testing.T) (ops []string) {
	t.Helper()
	moving := []string{"Admission", "Dispatch", "Letters"}
	others := []string{
		"Store", "Jobs", "Insight", "Quotas", "Settings", "Overrides", "Tokens", "Schedules", "Triggers", "Trail", "Retention", "Upkeep",
	}
	c := readPackage(t, filepath.Join("..", "..", "pkg", "store"))
	for name, part := range c.interfaces {
		switch {
		case slices.Contains(moving, name):
			for _, m := range part.Methods.List {
				for _, n := range m.Names {
					ops = append(ops, n.Name)
				}
			}
		case !slices.Contains(others, name):
			t.Errorf("package store has a new interface %s: say in storeOperations whether it moves jobs", name)
		}
	}
	if len(ops) < 9 {
		t.Fatalf("only %q are found in the store's contract", ops)
	}
	return ops
}

func serviceFolders(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("..", "..", "services"))
	if err != nil || len(entries) < len(allServices) {
		t.Fatalf("the services: %v, %v", entries, err)
	}
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, filepath.Join("..", "..", "services", e.Name()))
	}
	return dirs
}

// code is a package's functions, by name whatever their receiver, and interfaces.
type code struct {
	functions  map[string][]*ast.FuncDecl
	interfaces map[string]*ast.InterfaceType
	imports    map[string]bool // last elements of their paths
}

func readPackage(t *testing.T, dir string) code {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no code in %s: %v", dir, err)
	}
	c := code{functions: map[string][]*ast.FuncDecl{}, interfaces: map[string]*ast.InterfaceType{}, imports: map[string]bool{}}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			c.imports[path.Base(strings.Trim(i.Path.Value, `"`))] = true
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				c.functions[d.Name.Name] = append(c.functions[d.Name.Name], d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						if it, ok := ts.Type.(*ast.InterfaceType); ok {
							c.interfaces[ts.Name.Name] = it
						}
					}
				}
			}
		}
	}
	return c
}

// inspect calls see for every node of the functions of a name.
func (c code) inspect(name string, see func(ast.Node)) {
	for _, d := range c.functions[name] {
		ast.Inspect(d, func(n ast.Node) bool { see(n); return true })
	}
}

// refers reports whether a function calls another one, or takes it as a value of
// its receiver.
func (c code) refers(from, to string) (yes bool) {
	c.inspect(from, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, _ := n.X.(*ast.Ident)
			yes = yes || n.Sel.Name == to && (x == nil || !c.imports[x.Name])
		case *ast.CallExpr:
			id, ok := n.Fun.(*ast.Ident)
			yes = yes || ok && id.Name == to
		}
	})
	return yes
}

// builds reports whether a function writes a store.Call or a store.Replay that
// says whose it is: one without a namespace is only told of.
func (c code) builds(name string) (yes bool) {
	c.inspect(name, func(n ast.Node) {
		lit, ok := n.(*ast.CompositeLit)
		yes = yes || ok && isCall(lit.Type) && slices.ContainsFunc(lit.Elts, func(e ast.Expr) bool {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				return false
			}
			key, ok := kv.Key.(*ast.Ident)
			return ok && key.Name == "Namespace"
		})
	})
	return yes
}

// isCall reports whether a type is store.Call or store.Replay.
func isCall(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Call" && sel.Sel.Name != "Replay" {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "store"
}

// makers are the functions that make calls: those that write one, or have one
// written by a function that returns it.
func (c code) makers() map[string]bool {
	out := map[string]bool{}
	for name := range c.functions {
		if !c.builds(name) {
			continue
		}
		if !slices.ContainsFunc(c.functions[name], returnsCall) {
			out[name] = true
			continue
		}
		for user := range c.functions {
			if c.refers(user, name) {
				out[user] = true
			}
		}
	}
	return out
}

func returnsCall(d *ast.FuncDecl) bool {
	return d.Type.Results != nil && slices.ContainsFunc(d.Type.Results.List, func(f *ast.Field) bool { return isCall(f.Type) })
}

// callers are the functions that call a method of one of the names.
func (c code) callers(of ...string) map[string]bool {
	out := map[string]bool{}
	for name := range c.functions {
		c.inspect(name, func(n ast.Node) {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(of, sel.Sel.Name) {
					out[name] = true
				}
			}
		})
	}
	return out
}

// reaching are the functions from which Admit or Replay of the store can be
// reached, where a package has a group commit in between through that.
func (c code) reaching() map[string]bool {
	out := c.callers("Admit", "Replay")
	if len(out) > 0 {
		maps.Copy(out, c.callers("Submit"))
	}
	for grown := true; grown; {
		grown = false
		for name := range c.functions {
			if !out[name] && slices.ContainsFunc(slices.Collect(maps.Keys(out)), func(to string) bool { return c.refers(name, to) }) {
				out[name], grown = true, true
			}
		}
	}
	return out
}

// methods are the served methods whose handlers make jobs.
func (c code) methods() map[string]bool {
	reaching, out := c.reaching(), map[string]bool{}
	c.inspect("Methods", func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		var name, handler string
		for _, arg := range call.Args {
			switch arg := arg.(type) {
			case *ast.BasicLit:
				name, _ = strconv.Unquote(arg.Value)
			case *ast.SelectorExpr:
				handler = arg.Sel.Name
			}
		}
		if name != "" && reaching[handler] {
			out[name] = true
		}
	})
	return out
}

// routes are the patterns that the daemon's HTTP door serves.
func routes(t *testing.T) (patterns []string) {
	t.Helper()
	c := readPackage(t, ".")
	c.inspect("routes", func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Handle" && sel.Sel.Name != "HandleFunc" || len(call.Args) == 0 {
			return
		}
		switch arg := call.Args[0].(type) {
		case *ast.BasicLit:
			pattern, _ := strconv.Unquote(arg.Value)
			patterns = append(patterns, pattern)
		case *ast.CallExpr: // a function that gives pattern and handler
			if of, ok := arg.Fun.(*ast.SelectorExpr); ok {
				if x, ok := of.X.(*ast.Ident); ok && x.Name == "grpchealth" {
					patterns = append(patterns, "grpc.health")
					return
				}
			}
			patterns = append(patterns, "of "+sel.Sel.Name)
		default:
			patterns = append(patterns, "of "+sel.Sel.Name)
		}
	})
	if len(patterns) < 4 {
		t.Fatalf("only the routes %q are found", patterns)
	}
	return patterns
}

// heard are the subjects on which a daemon listens, but for those of methods,
// which stand for themselves. Some parts begin to listen after the start: it waits
// for what the tables name.
func heard(t *testing.T, d *daemon, makers map[string]bool) (subjects []string) {
	t.Helper()
	named := slices.Collect(maps.Keys(keysOf(makesNothing)))
	for _, p := range paths {
		named = append(named, p.from...)
	}
	testkit.Eventually(t, "the daemon listens on every subject of paths and of makesNothing", func() bool {
		var served map[string]bool
		served, subjects = listening(t, d)
		for name := range makers {
			if !served[name] {
				return false
			}
		}
		return !slices.ContainsFunc(named, func(what string) bool {
			subject, ok := strings.CutPrefix(what, "subject ")
			return ok && !slices.Contains(subjects, subject)
		})
	})
	return subjects
}

// listening are the methods that a daemon serves over NATS, and the other
// subjects of its subscriptions.
func listening(t *testing.T, d *daemon) (served map[string]bool, subjects []string) {
	t.Helper()
	verbs := map[string]string{}
	for _, m := range auth.Methods {
		verbs["fq.v1."+m.Verb+".*.*"] = m.Name
	}
	connections, err := d.nats.Connz(&server.ConnzOptions{Subscriptions: true, State: server.ConnOpen})
	if err != nil {
		t.Fatal(err)
	}
	served = map[string]bool{}
	for _, c := range connections.Conns {
		for _, subject := range c.Subs {
			switch name := verbs[subject]; {
			case name != "":
				served[name] = true
			case strings.HasPrefix(subject, "fqi.v1."):
				subjects = append(subjects, "fqi.v1.>")
			case strings.HasPrefix(subject, auth.ServiceInbox+"."), strings.HasPrefix(subject, "_INBOX."):
				subjects = append(subjects, "its inboxes")
			default:
				subjects = append(subjects, subject)
			}
		}
	}
	return served, subjects
}
