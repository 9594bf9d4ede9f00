package testkit

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Answer is what an HTTP door answered in JSON.
type Answer struct {
	Status  int
	Header  http.Header
	Reason  string // of an error, as the next two
	Message string
	Details map[string]string
	Body    map[string]any
}

// Post sends a body as JSON to a method's URL, with a bearer token.
func Post(t testing.TB, client *http.Client, url, token, body string) Answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := Answer{Status: res.StatusCode, Header: res.Header, Reason: res.Header.Get("Fq-Reason"), Details: map[string]string{}}
	if err := json.Unmarshal(text, &a.Body); err != nil {
		t.Fatalf("%s answered %q: %v", url, text, err)
	}
	a.Message, _ = a.Body["message"].(string)
	details, _ := a.Body["details"].([]any)
	for _, d := range details {
		metadata, _ := Dig(d, "debug", "metadata").(map[string]any)
		for k, v := range metadata {
			a.Details[k] = fmt.Sprint(v)
		}
	}
	return a
}

// Dig follows keys and indexes into decoded JSON; nil when there is nothing.
func Dig(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// Metric reads a counter or a gauge: the one whose first label is the given
// one, or the first of all. It is 0 when there is none.
func Metric(t testing.TB, from prometheus.Gatherer, name string, label ...string) float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if len(label) == 0 || m.GetLabel()[0].GetName() == label[0] && m.GetLabel()[0].GetValue() == label[1] {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
