package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/client"
	"flexiq/pkg/testkit"
)

// TestOddPayloadsAreRefusedOrRun sends input that some part of the way could
// stumble over, through both doors: each is refused by name or runs to its end, and
// none keeps a slot.
func TestOddPayloadsAreRefusedOrRun(t *testing.T) {
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	raw := func(b string) string {
		return fmt.Sprintf(`"payload":%q`, base64.StdEncoding.EncodeToString([]byte(b)))
	}
	odd := map[string]string{
		"a NUL escape":             `"args":"a\u0000b"`,
		"a lone surrogate":         `"args":"\ud800"`,
		"a reversed pair":          `"args":"\udc00\ud800"`,
		"deep JSON":                `"args":` + deep,
		"deep JSON as bytes":       raw(deep),
		"a NUL byte":               raw("a\x00b"),
		"invalid UTF-8":            raw("\xff\xfe\xc0\x80"),
		"invalid UTF-8 in JSON":    "\"args\":\"\xff\"",
		"empty":                    `"payload":""`,
		"none":                     `"priority":0`,
		"NUL in metadata":          `"metadata":{"k":"\u0000"}`,
		"control bytes in the key": `"unique_key":"a\u0001b"`,
	}
	eachStore(t, func(t *testing.T, s kept) {
		d, stop := inProcessLogging(t, io.Discard, s.args...)
		tokens, err := readCredentials(credentialsFile(d.opts.DataDir))
		if err != nil {
			t.Fatal(err)
		}
		token := tokens.Tokens["default"]
		sent := map[string]string{} // names by id
		for name, fields := range odd {
			body := `{"job":{"task":"odd","max_attempts":1,` + fields + `}}`
			res, viaHTTP := post(t, d, token, "ProducerService/Enqueue", body)
			_, viaNATS := natsPost(t, d, token, "enqueue", body)
			for door, answer := range map[string]map[string]any{"http": viaHTTP, "nats": viaNATS} {
				if id, ok := testkit.Dig(answer, "result", "job", "id").(string); ok {
					sent[id] = name + " over " + door
					continue
				}
				if reason := refusal(res, answer); reason != "INVALID_REQUEST" {
					t.Errorf("%s over %s: %v", name, door, answer)
				}
			}
		}
		if len(sent) < 8 {
			t.Errorf("only %d were taken: %v", len(sent), sent)
		}
		runOdd(t, dial(t, d.opts.DataDir, "default", ""), sent)
		stop()
		checkCounts(t, s.opts)
	})
}

// refusal is the reason of an error, through either door.
func refusal(res *http.Response, answer map[string]any) any {
	if reason := testkit.Dig(answer, "error", "reason"); reason != nil {
		return reason
	}
	return res.Header.Get("Fq-Reason")
}

// runOdd ends half of the jobs well, and half with an error text that is as odd.
func runOdd(t *testing.T, c *client.Client, sent map[string]string) {
	t.Helper()
	var mu sync.Mutex
	ran := map[string]bool{}
	w, err := client.NewWorker(client.WorkerOptions{Slots: 4, MaxJobs: int64(len(sent))}, c)
	if err != nil {
		t.Fatal(err)
	}
	w.HandleAll(func(_ context.Context, task *client.Task) error {
		mu.Lock()
		defer mu.Unlock()
		ran[task.ID()] = true
		if len(ran)%2 == 0 {
			return errors.New("bad \x00\x01\x1b[31m\xff text")
		}
		return task.SetResult([]byte("\x00\xff"))
	})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	ended := map[string]int{}
	for j, err := range c.Jobs(t.Context(), &flexiqv1.ListJobsRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		ended[j.GetStatus()]++
		if strings.ContainsAny(j.GetError(), "\x00\x01\x1b") {
			t.Errorf("%s: the stored error is %q", sent[j.GetId()], j.GetError())
		}
	}
	if ended["complete"]+ended["dead"] != len(sent) || len(ended) > 2 || ended["dead"] != len(sent)/2 {
		t.Errorf("of %d jobs %v", len(sent), ended)
	}
	if u, err := c.Admin().GetUsage(t.Context()); err != nil || u.GetRunning()+u.GetPending() != 0 {
		t.Errorf("usage %v, %v", u, err)
	}
}
