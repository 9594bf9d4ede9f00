package bus

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/nats-io/nats.go"

	"flexiq/pkg/fault"
)

// errorBody is the body of an error, whatever the request's content type.
type errorBody struct {
	Error errorFields `json:"error"`
}

type errorFields struct {
	Code    fault.Code        `json:"code"`
	Reason  fault.Reason      `json:"reason"`
	Message string            `json:"message"`
	Details map[string]string `json:"details"`
}

// encodeError makes the reply that tells a fault.
func encodeError(f *fault.Error) *nats.Msg {
	details := f.Details
	if details == nil {
		details = map[string]string{}
	}
	var body bytes.Buffer
	out := json.NewEncoder(&body)
	out.SetEscapeHTML(false) // messages have ">=" in them
	// Strings and a map of strings always encode.
	_ = out.Encode(errorBody{errorFields{f.Reason.Code(), f.Reason, f.Message, details}})
	return &nats.Msg{
		Header: nats.Header{
			headerErrorCode: {strconv.Itoa(f.Reason.Status())},
			headerError:     {f.Message},
			headerReason:    {string(f.Reason)},
		},
		Data: bytes.TrimSuffix(body.Bytes(), []byte("\n")),
	}
}

// decodeError reads a reply that tells a fault. The body says everything; the
// headers are enough when something other than FlexiQ answered.
func decodeError(msg *nats.Msg) error {
	var body errorBody
	if err := json.Unmarshal(msg.Data, &body); err == nil && body.Error.Reason != "" {
		return fault.New(body.Error.Reason, "%s", body.Error.Message).WithAll(body.Error.Details)
	}
	reason := fault.Reason(msg.Header.Get(headerReason))
	if reason == "" {
		reason = fault.Internal
	}
	return fault.New(reason, "%s", msg.Header.Get(headerError))
}
