package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

func environment(values map[string]string) func(string) string {
	return func(key string) string { return values[key] }
}

func TestContextsLieWhereTheUserKeepsSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ xdg, home, want string }{
		{"/x", "/home/u", "/x/flexiq"},
		{"", "/home/u", "/home/u/.config/flexiq"},
		{"relative", "/home/u", "/home/u/.config/flexiq"}, // as the XDG specification says
	} {
		got := client.UserContexts(environment(map[string]string{"XDG_CONFIG_HOME": tc.xdg, "HOME": tc.home}))
		if got.Dir != tc.want {
			t.Errorf("XDG_CONFIG_HOME=%q: %s, want %s", tc.xdg, got.Dir, tc.want)
		}
	}
}

func TestContextsAreSavedForTheOwnerAlone(t *testing.T) {
	t.Parallel()
	s := client.Contexts{Dir: filepath.Join(t.TempDir(), "flexiq")}
	if _, err := s.Current(); !errors.Is(err, client.ErrNoContext) {
		t.Errorf("current of nothing: %v", err)
	}
	if names, err := s.List(); err != nil || len(names) != 0 {
		t.Errorf("list of nothing: %v %v", names, err)
	}
	local := client.Context{Server: "nats://h:1", Token: "t", PlatformToken: "p", DataDir: "/data"}
	if err := s.Save("local", local); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load("local"); err != nil || got != local {
		t.Errorf("loaded %+v %v", got, err)
	}
	path := filepath.Join(s.Dir, "contexts", "local.json")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if name, err := s.Current(); err != nil || name != "local" {
		t.Errorf("the first context is not current: %q %v", name, err)
	}

	local.Token = "t2"
	if err := s.Save("local", local); err != nil {
		t.Errorf("the same data folder: %v", err)
	}
	other := local
	other.DataDir = "/elsewhere"
	if err := s.Save("local", other); !errors.Is(err, client.ErrContextTaken) {
		t.Errorf("another data folder: %v", err)
	}
	if err := s.Save("prod", client.Context{Server: "http://h"}); err != nil {
		t.Fatal(err)
	}
	if names, _ := s.List(); len(names) != 2 || names[0] != "local" || names[1] != "prod" {
		t.Errorf("names %v", names)
	}
	if name, _ := s.Current(); name != "local" {
		t.Errorf("saving changed the current context to %q", name)
	}
	if err := s.Use("prod"); err != nil {
		t.Fatal(err)
	}
	if err := s.Use("nope"); !errors.Is(err, client.ErrNoContext) {
		t.Errorf("use of a missing one: %v", err)
	}
	if name, _ := s.Current(); name != "prod" {
		t.Errorf("current %q", name)
	}
	for _, bad := range []string{"", ".", "..", "../x", "a/b", "a b", ".hidden"} {
		if err := s.Save(bad, local); err == nil {
			t.Errorf("name %q was taken", bad)
		}
	}
}

func TestResolvePrefersTheEnvironment(t *testing.T) {
	t.Parallel()
	s := client.Contexts{Dir: t.TempDir()}
	resolve := func(env map[string]string, name string) (client.Context, error) {
		return s.Resolve(environment(env), name)
	}
	if _, err := resolve(nil, ""); !fault.Is(err, fault.InvalidRequest) {
		t.Errorf("nothing is known: %v", err)
	}
	if c, err := resolve(map[string]string{"FLEXIQ_TOKEN": "e"}, ""); err != nil || c != (client.Context{Token: "e"}) {
		t.Errorf("only a token: %+v %v", c, err)
	}
	saved := client.Context{Server: "nats://saved", Token: "s", PlatformToken: "p"}
	if err := s.Save("saved", saved); err != nil {
		t.Fatal(err)
	}
	if err := s.Save("second", client.Context{Server: "nats://second", Token: "2"}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		env   map[string]string
		named string
		want  client.Context
	}{
		"current":     {nil, "", saved},
		"environment": {map[string]string{"FLEXIQ_SERVER": "http://e", "FLEXIQ_TOKEN": "e"}, "", client.Context{Server: "http://e", Token: "e"}},
		"server only": {map[string]string{"FLEXIQ_SERVER": "http://e"}, "", client.Context{Server: "http://e", Token: "s", PlatformToken: "p"}},
		"token only":  {map[string]string{"FLEXIQ_TOKEN": "e"}, "", client.Context{Server: "nats://saved", Token: "e"}},
		"named":       {map[string]string{"FLEXIQ_SERVER": "http://e", "FLEXIQ_TOKEN": "e"}, "second", client.Context{Server: "nats://second", Token: "2"}},
	} {
		if got, err := resolve(tc.env, tc.named); err != nil || got != tc.want {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "contexts", "saved.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := resolve(nil, ""); err == nil {
		t.Error("a broken file was taken")
	}
}
