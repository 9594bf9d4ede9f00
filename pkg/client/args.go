package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"flexiq/pkg/job"
)

// argsValue turns any value with a JSON form into a protobuf one.
func argsValue(args any) (*structpb.Value, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("must have a JSON form: %w", err)
	}
	if err := checkArgs(raw); err != nil {
		return nil, err
	}
	v := new(structpb.Value)
	if err := protojson.Unmarshal(raw, v); err != nil {
		return nil, errors.New("must be JSON with finite numbers and valid Unicode")
	}
	return v, nil
}

// checkArgs refuses what would not arrive as it was sent: protobuf's JSON
// values keep every number as a float64.
func checkArgs(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for depth := 0; ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("must be JSON: %w", err)
		}
		switch t := token.(type) {
		case json.Delim:
			if t == '}' || t == ']' {
				depth--
				continue
			}
			if depth++; depth > job.MaxArgsDepth {
				return fmt.Errorf("must be at most %d levels deep", job.MaxArgsDepth)
			}
		case json.Number:
			if !exact(t.String()) {
				return fmt.Errorf("the integer %s is beyond ±2⁵³ and would be rounded; send it as a string, or in payload", t)
			}
		}
	}
}

// exact reports whether a JSON number, when it is written as an integer, is
// one that a float64 holds.
func exact(number string) bool {
	const most = 1 << 53
	if strings.ContainsAny(number, ".eE") {
		return true
	}
	n, err := strconv.ParseInt(number, 10, 64)
	return err == nil && -most <= n && n <= most
}
