package usage_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/usage"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var golden = usage.Batch{
	Records: []usage.Record{
		{Key: usage.Key{Token: "abc", Resource: "search", Minute: 29381234}, Totals: usage.Totals{Admitted: 9, Rejected: 2, Refunded: 1, Last: 1762874079}},
		{Key: usage.Key{Token: "Jane%20%7Badmin%7D", Minute: 29381235}, Totals: usage.Totals{Rejected: 1 << 52}},
		{Key: usage.Key{Token: "foreign \"tag\" é", Minute: 1}, Totals: usage.Totals{Admitted: 1, Last: 60}},
	},
	Events: []usage.Event{
		{
			ID: "0198f", Token: "abc", At: 1762874079123, Kind: "policy.assigned", Actor: "ops", Reason: "upgrade <paid>",
			Before: json.RawMessage(`{"policy":"free"}`), After: json.RawMessage(`{"policy":"pro"}`),
		},
		{ID: "0198e", At: 1, Kind: "config.reloaded"},
	},
}

func TestMessagesMatchTheGoldenFile(t *testing.T) {
	got, err := usage.AppendLines(nil, golden)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("testdata", "v1.0.jsonl")
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("messages changed; a published format only grows:\n got %s\nwant %s", got, want)
	}
	if back := decodeLines(t, want); !reflect.DeepEqual(back, golden) {
		t.Errorf("decoded %+v", back)
	}
}

// A newer writer of the same major version may add members; nothing else changes.
func TestDecodeAcceptsANewerMinorVersion(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "v1.7.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if got := decodeLines(t, data); !reflect.DeepEqual(got, golden) {
		t.Errorf("decoded %+v", got)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for message, want := range map[string]error{
		`{"v":"2.0","type":"usage","token":"t","minute":1}`:               usage.ErrVersion,
		`{"v":"2.0","type":"usage","token":{"id":"t"},"minute":"1"}`:      usage.ErrVersion,
		`{"v":"","type":"usage","token":"t","minute":1}`:                  usage.ErrMalformed,
		`{"v":"1","type":"usage","token":"t","minute":1}`:                 usage.ErrMalformed,
		`{"v":"0.1","type":"usage","token":"t","minute":1}`:               usage.ErrMalformed,
		`{"type":"usage","token":"t","minute":1}`:                         usage.ErrMalformed,
		`{"v":"1.0","type":"usage","token":"","minute":1}`:                usage.ErrMalformed,
		`{"v":"1.0","type":"usage","token":"a}b","minute":1}`:             usage.ErrMalformed,
		`{"v":"1.0","type":"usage","token":"t","minute":-1}`:              usage.ErrMalformed,
		`{"v":"1.0","type":"usage","token":"t","minute":1.5}`:             usage.ErrMalformed,
		`{"v":"1.0","type":"usage","token":"t","minute":1,"rejected":-1}`: usage.ErrMalformed,
		`{"v":"1.0","type":"surprise"}`:                                   usage.ErrMalformed,
		`{"v":"1.0","type":"event","kind":"a.b"}`:                         usage.ErrMalformed,
		`not json`: usage.ErrMalformed,
		``:         usage.ErrMalformed,
	} {
		var batch usage.Batch
		if err := usage.Decode([]byte(message), &batch); !errors.Is(err, want) {
			t.Errorf("Decode(%s) = %v, want %v", message, err, want)
		}
		if len(batch.Records)+len(batch.Events) > 0 {
			t.Errorf("Decode(%s) left %+v", message, batch)
		}
	}
}

func decodeLines(t *testing.T, data []byte) usage.Batch {
	t.Helper()
	var batch usage.Batch
	for line := range strings.Lines(string(data)) {
		if err := usage.Decode([]byte(line), &batch); err != nil {
			t.Fatalf("Decode(%s): %v", line, err)
		}
	}
	return batch
}

// FuzzDecode proves that whatever can be read is written again as a message of
// the same meaning.
func FuzzDecode(f *testing.F) {
	lines, _ := usage.AppendLines(nil, golden)
	for line := range strings.Lines(string(lines)) {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second usage.Batch
		if usage.Decode(data, &first) != nil {
			return
		}
		again, err := usage.AppendLines(nil, first)
		if err != nil {
			t.Fatal(err)
		}
		if err := usage.Decode(again, &second); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		third, err := usage.AppendLines(nil, second)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("%s, then %s (%v)", again, third, err)
		}
	})
}

func BenchmarkAppendRecord(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, 256)
	for b.Loop() {
		buf = usage.AppendRecord(buf[:0], golden.Records[0])
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	b.ReportAllocs()
	data := usage.AppendRecord(nil, golden.Records[0])
	var batch usage.Batch
	for b.Loop() {
		batch.Records = batch.Records[:0]
		if err := usage.Decode(data, &batch); err != nil {
			b.Fatal(err)
		}
	}
}
