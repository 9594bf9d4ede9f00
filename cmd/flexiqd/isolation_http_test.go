package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"flexiq/pkg/auth"
)

// TestIsolationOverHTTPAndGRPC calls every method with every scope: on the
// caller's own namespace, and with everything of another namespace that a
// request has room for. A method answers exactly when the scope opens it, and
// another's object is answered as one that does not exist.
func TestIsolationOverHTTPAndGRPC(t *testing.T) {
	t.Run("one process", func(t *testing.T) {
		home(t)
		newIsolation(t, inProcess(t)).matrix()
	})
	t.Run("split, on an outside server", func(t *testing.T) {
		home(t)
		n := newOutsideNATS(t)
		d, _ := n.daemon(configService)
		admission, _ := n.daemon(admissionService)
		dispatch, _ := n.daemon(dispatchgateService, retentionService)
		newIsolation(t, d, admission, dispatch).matrix()
	})
}

func (in *isolation) matrix() {
	in.untouched(func() {
		for i, ns := range callers {
			doors := []string{auth.DoorHTTP}
			if i < 2 { // the name says nothing new to another protocol
				doors = append(doors, auth.DoorGRPC)
			}
			v := in.victims[victims[i%len(victims)]]
			for _, door := range doors {
				for _, scope := range auth.Scopes {
					for _, m := range auth.Methods {
						in.tryScope(door, ns, scope, m, v)
					}
				}
			}
		}
	})
}

func (in *isolation) tryScope(door, ns string, scope auth.Scope, m auth.Method, v *victim) {
	in.t.Helper()
	token := in.tokens[ns][scope]
	opened := auth.Identity{Scopes: []auth.Scope{scope}}.Has(m.Scopes...)
	if opened && m.Stream {
		return // it names nobody, and what it streams is tested with the events
	}
	plain := in.request(m, nil)
	if d := plain.Descriptor().Fields().ByName("default"); d != nil && scope == auth.Platform {
		plain.Set(d, protoreflect.ValueOfBool(true)) // what it has instead of a namespace's own
	}
	own := in.call(door, token, m, plain)
	switch {
	case opened == (own.code == "permission_denied"), own.code == "unauthenticated", own.code == "internal":
		in.t.Errorf("%s: %+v", where(door, ns, scope, m), own)
	case !opened:
		if theirs := in.call(door, token, m, in.request(m, in.reach(v, "pending"))); theirs != own {
			in.t.Errorf("%s of %q: %+v, of its own namespace: %+v", where(door, ns, scope, m), v.name, theirs, own)
		}
		return
	case scope == auth.Platform:
		return // what it may do with other namespaces is not isolation
	}
	in.tryPage(door, token, m, v)
	for kind := range v.objects {
		theirs := in.call(door, token, m, in.request(m, in.reach(v, kind)))
		missing := in.call(door, token, m, in.request(m, nowhere(kind)))
		if sketch(theirs) != sketch(missing) {
			in.t.Errorf("%s with a %s of %q:\n%+v, with what does not exist:\n%+v", where(door, ns, scope, m), kind, v.name, theirs, missing)
		}
	}
}

// reach is what a request names: objects by id, and everything else by text.
type reach struct{ namespace, id, lease, text string }

// nowhere has the form of what exists, and does not.
func nowhere(kind string) *reach {
	r := &reach{namespace: "nobody", id: "01890a5d-ac96-774b-bcce-b302099a8057", lease: "00000000-0000-7000-8000-000000000000", text: "nobodys"}
	if kind == "token" {
		r.id = "aaaaaaaaaaaaaaaa"
	}
	return r
}

func (in *isolation) reach(v *victim, kind string) *reach {
	return &reach{namespace: v.name, id: v.objects[kind], lease: v.lease, text: "theirs"}
}

// tryPage continues another's list: whatever comes of it is the caller's own.
func (in *isolation) tryPage(door, token string, m auth.Method, v *victim) {
	in.t.Helper()
	if describe(in.t, m).Input().Fields().ByName("page_token") == nil {
		return
	}
	a := in.call(door, token, m, in.named(m.Name, map[string]string{"page_token": v.page}))
	for _, id := range v.objects {
		if strings.Contains(a.body, id) || strings.Contains(a.body, "theirs") {
			in.t.Errorf("%s with a page token of %q: %+v", m.Name, v.name, a)
		}
	}
}

// request fills a method's request with what it names; nil is the shortest
// request.
func (in *isolation) request(m auth.Method, r *reach) *dynamicpb.Message {
	in.t.Helper()
	msg := dynamicpb.NewMessage(describe(in.t, m).Input())
	if r != nil {
		for _, makes := range []string{"Put", "Set", "Create", "Enqueue"} {
			if strings.HasPrefix(m.Name, makes) {
				mine := *r
				mine.text, r = "mine", &mine // or the caller would have what it reaches for
			}
		}
		r.fill(msg, 0)
	}
	return msg
}

// fill sets every text of a message to what its name asks for.
func (r *reach) fill(msg protoreflect.Message, depth int) {
	fields := msg.Descriptor().Fields()
	spec := msg.Descriptor().Name() == "JobSpec"
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap() || f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		case f.Kind() == protoreflect.StringKind:
			text := r.value(string(f.Name()))
			if text == "" || spec && f.Name() != "task" { // TestIDsAndKeysBelongToANamespace has those
				continue
			}
			if f.IsList() {
				msg.Mutable(f).List().Append(protoreflect.ValueOfString(text))
			} else {
				msg.Set(f, protoreflect.ValueOfString(text))
			}
		case f.Kind() == protoreflect.MessageKind && depth < 3 && strings.HasPrefix(string(f.Message().FullName()), "flexiq."):
			if f.IsList() {
				r.fill(msg.Mutable(f).List().AppendMutable().Message(), depth+1)
			} else if f.Name() != "debounce" && f.Name() != "quota" && f.Name() != "filter" {
				r.fill(msg.Mutable(f).Message(), depth+1)
			}
		}
	}
}

func (r *reach) value(field string) string {
	switch field {
	case "namespace":
		return r.namespace
	case "id", "ids", "job_id", "token_id":
		return r.id
	case "lease":
		return r.lease
	case "unique_key", "name", "key", "schedule", "trigger":
		return r.text
	case "task":
		return "work"
	case "outcome":
		return "release"
	case "scopes":
		return string(auth.Inspect)
	}
	return ""
}

// differing are the parts of an answer in which two calls that did the same
// differ, in the order in which they are looked for.
var differing = []*regexp.Regexp{
	regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), // job
	regexp.MustCompile(`fqt\.[a-z0-9=_-]+\.[a-z2-7]+\.[a-z2-7]+`),                      // token
	regexp.MustCompile(`\b[a-z2-7]{16}\b`),                                             // token's id
	regexp.MustCompile(`\b[A-Z2-7]{26}\b`),                                             // lease
	regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`),                         // time
	regexp.MustCompile(`[0-9]+`),
}

// comesLater is told of a worker from the second look on.
var comesLater = regexp.MustCompile(`,"last_seen":"[^"]*"`)

// sketch is an answer without that.
func sketch(a answer) string {
	text := a.code + "\n" + a.message + "\n" + comesLater.ReplaceAllString(a.body, "")
	for _, part := range differing {
		text = part.ReplaceAllString(text, "-")
	}
	return text
}

// Without a valid token nothing is open but health, metrics and signed
// triggers, and every refusal is the same to the letter.
func TestNothingIsOpenWithoutAToken(t *testing.T) {
	home(t)
	d := inProcess(t)
	in := newIsolation(t, d)
	good := in.tokens["lark"][auth.Admin]
	parts, err := auth.Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	revoked := in.token("lark", tenantScopes...)
	in.must(in.call(auth.DoorHTTP, in.platform, method(t, "RevokeToken"), in.named("RevokeToken", map[string]string{"namespace": "lark", "id": idOf(t, revoked)})))
	wrong := map[string]string{
		"no token":               "",
		"not a token":            "open sesame",
		"a wrong secret":         good + "a",
		"an unknown id":          "fqt.lark.aaaaaaaaaaaaaaaa." + parts.Secret,
		"another namespace":      "fqt.wren." + parts.ID + "." + parts.Secret,
		"no namespace":           "fqt.." + parts.ID + "." + parts.Secret,
		"the namespace \"\"":     `fqt."".` + parts.ID + "." + parts.Secret,
		"the platform's mark":    "fqt.=." + parts.ID + "." + parts.Secret,
		"a revoked token":        revoked,
		"no secret":              "fqt.lark." + parts.ID + ".",
		"a secret of a platform": strings.Replace(in.platform, "fqt.=.", "fqt.lark.", 1),
	}
	in.untouched(func() {
		for _, door := range []string{auth.DoorHTTP, auth.DoorGRPC} {
			var first answer
			for name, token := range wrong {
				for _, m := range auth.Methods {
					a := in.call(door, token, m, in.request(m, in.reach(in.victims[victims[0]], "pending")))
					if first == (answer{}) {
						first = a
					}
					if a.code != "unauthenticated" || a != first {
						t.Errorf("%s: %s with %s: %+v, want %+v", door, m.Name, name, a, first)
					}
				}
			}
		}
	})
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 200,
		"/flexiq.v1.AdminService/Nothing": 401, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 401, "/": 401, "/v1/settings/quota:default": 401,
	} {
		req, err := http.NewRequest(http.MethodGet, d.httpURL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, _ := do(t, req); res.StatusCode != want {
			t.Errorf("GET %s without a token: %s, want %d", path, res.Status, want)
		}
	}
}

// named is a request with some texts in it.
func (in *isolation) named(name string, texts map[string]string) *dynamicpb.Message {
	in.t.Helper()
	msg := dynamicpb.NewMessage(describe(in.t, method(in.t, name)).Input())
	for field, text := range texts {
		msg.Set(msg.Descriptor().Fields().ByName(protoreflect.Name(field)), protoreflect.ValueOfString(text))
	}
	return msg
}
