package auth_test

import (
	"strings"
	"testing"
	"unicode"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// kebab is the rule by which a method's verb follows from its name.
func kebab(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func TestMethodsAreThoseOfTheDescriptors(t *testing.T) {
	declared, streams := make(map[string]protoreflect.FullName), make(map[string]bool)
	for _, file := range []protoreflect.FileDescriptor{
		flexiqv1.File_flexiq_v1_producer_proto, flexiqv1.File_flexiq_v1_worker_proto, flexiqv1.File_flexiq_v1_admin_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				if method.IsStreamingClient() {
					t.Errorf("%s streams requests, which no door takes", method.Name())
				}
				streams[string(method.Name())] = method.IsStreamingServer()
				declared[string(method.Name())] = service.FullName()
			}
		}
	}
	for _, m := range auth.Methods {
		if got, ok := declared[m.Name]; !ok || string(got) != m.Service {
			t.Errorf("%s: in the catalogue under %s, declared under %q", m.Name, m.Service, got)
		}
		if m.Stream != streams[m.Name] {
			t.Errorf("%s: stream %v, declared %v", m.Name, m.Stream, streams[m.Name])
		}
		delete(declared, m.Name)
		if m.Verb != kebab(m.Name) {
			t.Errorf("%s: verb %q, want %q", m.Name, m.Verb, kebab(m.Name))
		}
		if len(m.Scopes) == 0 {
			t.Errorf("%s: open without a scope", m.Name)
		}
		if got, ok := auth.MethodNamed(m.Name); !ok || got.Procedure() != m.Procedure() {
			t.Errorf("MethodNamed(%q) = %v, %v", m.Name, got, ok)
		}
	}
	for name, service := range declared {
		t.Errorf("%s of %s: not in the catalogue, or there twice", name, service)
	}
	if _, ok := auth.MethodNamed("enqueue"); ok {
		t.Error("MethodNamed knows a verb as a name")
	}
}

// The interface's scopes, written out on their own: whoever widens a scope must do it twice.
func TestScopesOfMethods(t *testing.T) {
	want := map[string]string{
		"Enqueue": "produce", "EnqueueBatch": "produce", "EnqueueCalls": "produce", "CancelJobs": "produce",
		"GetJob": "produce inspect", "ListJobs": "produce inspect",
		"Claim": "work", "Heartbeat": "work", "Settle": "work",
		"GetQuota": "inspect platform", "SetQuota": "admin platform", "EditQuota": "admin platform", "ClearQuota": "admin platform",
		"WatchEvents": "inspect", "ListQueues": "inspect", "ListWorkers": "inspect", "Explain": "inspect",
		"PutSchedule": "admin", "DeleteSchedule": "admin", "PauseSchedule": "admin", "ResumeSchedule": "admin", "RunSchedule": "admin",
		"ListSchedules": "inspect", "PutTrigger": "admin", "DeleteTrigger": "admin", "ListTriggers": "inspect",
		"SetOverride": "admin", "ClearOverride": "admin", "ListOverrides": "inspect",
		"GetUsage": "inspect", "ListDeadLetters": "inspect", "GetDeadLetter": "inspect", "ListAudit": "inspect platform",
		"DeleteDeadLetters": "admin", "ReplayDeadLetters": "admin",
		"CreateToken": "admin platform", "ListTokens": "admin platform", "RevokeToken": "admin platform",
		"GetSetting": "inspect", "ListSettings": "inspect", "PutSetting": "admin", "DeleteSetting": "admin",
		"DeleteNamespace": "platform", "ListNamespaces": "platform", "ExchangeToken": "platform",
	}
	plain := map[string]bool{"Enqueue": true, "EnqueueBatch": true, "SetQuota": true, "EditQuota": true, "ClearQuota": true}
	for _, m := range auth.Methods {
		var scopes []string
		for _, s := range m.Scopes {
			scopes = append(scopes, string(s))
		}
		if got := strings.Join(scopes, " "); got != want[m.Name] {
			t.Errorf("%s: scopes %q, want %q", m.Name, got, want[m.Name])
		}
		if m.Plain != plain[m.Name] {
			t.Errorf("%s: plain %v", m.Name, m.Plain)
		}
		if m.LongPoll != (m.Name == "Claim") {
			t.Errorf("%s: long poll %v", m.Name, m.LongPoll)
		}
	}
}
