package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/tallygate/tallygate/internal/export"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

var midnight = time.Date(2025, 2, 20, 0, 0, 0, 0, time.UTC)

func open(t *testing.T, records ...usage.Record) *history.Store {
	t.Helper()
	s, err := history.Open(context.Background(), "sqlite:"+filepath.Join(t.TempDir(), "history.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Ingest(context.Background(), usage.Batch{Records: records}); err != nil {
		t.Fatal(err)
	}
	return s
}

func record(t *testing.T, text string, at time.Time, admitted int64) usage.Record {
	t.Helper()
	id, err := token.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	r := usage.Record{Key: usage.Key{Token: id, Resource: "se%3Aarch", Minute: at.Unix() / 60}, Totals: usage.Totals{Admitted: admitted, Rejected: 1}}
	if admitted > 0 {
		r.Last = at.Unix() + 5
	}
	return r
}

func all() history.Rows {
	return history.Rows{From: midnight, To: midnight.AddDate(0, 0, 3), Step: time.Minute}
}

func none(int) {}

func TestTextFormats(t *testing.T) {
	s := open(t, record(t, "b,\"c\"\n", midnight, 3), record(t, "a<&>", midnight.Add(time.Hour), 0))
	for format, want := range map[string]string{
		"csv": "token,resource,start,admitted,rejected,refunded,last\n" +
			"a<&>,se:arch,2025-02-20T01:00:00Z,0,1,0,\n" +
			"\"b,\"\"c\"\"\n\",se:arch,2025-02-20T00:00:00Z,3,1,0,2025-02-20T00:00:05Z\n",
		"jsonl": `{"token":"a<&>","resource":"se:arch","start":"2025-02-20T01:00:00Z","admitted":0,"rejected":1,"refunded":0}` + "\n" +
			`{"token":"b,\"c\"\n","resource":"se:arch","start":"2025-02-20T00:00:00Z","admitted":3,"rejected":1,"refunded":0,"last":"2025-02-20T00:00:05Z"}` + "\n",
	} {
		var out bytes.Buffer
		if err := export.To(context.Background(), &out, format, s, all(), none); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s", format, err, out.String())
		}
	}
	if err := export.To(context.Background(), &bytes.Buffer{}, "xml", s, all(), none); err == nil || !strings.Contains(err.Error(), "parquet, csv and jsonl") {
		t.Errorf("an unknown format: %v", err)
	}
}

// Another reader than the writer's own type: columns, logical types, row groups.
func TestParquetHasTypesThatOthersRead(t *testing.T) {
	var records []usage.Record
	for i := range 12_000 { // more than one read
		records = append(records, record(t, fmt.Sprintf("t%05d", i/10), midnight.Add(time.Duration(i%10)*time.Minute), int64(i%3)))
	}
	s := open(t, records...)
	var out bytes.Buffer
	rows := 0
	if err := export.To(context.Background(), &out, "parquet", s, all(), func(n int) { rows += n }); err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if f.NumRows() != 12_000 || rows != 12_000 {
		t.Errorf("%d rows, %d told", f.NumRows(), rows)
	}
	for name, want := range map[string]string{
		"token": "STRING", "resource": "STRING", "start": "TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS)", "admitted": "INT(64,true)",
		"last": "TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS)",
	} {
		leaf, ok := f.Schema().Lookup(name)
		if !ok {
			t.Errorf("there is no column %s", name)
		} else if got := leaf.Node.Type().String(); got != want {
			t.Errorf("column %s is %s, want %s", name, got, want)
		}
	}
	type units struct {
		Admitted int64 `parquet:"admitted"`
	}
	read, err := parquet.Read[units](bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, r := range read {
		sum += r.Admitted
	}
	if total, err := s.Sum(context.Background()); sum != total.Admitted || err != nil {
		t.Errorf("admitted adds up to %d, the history says %d, %v", sum, total.Admitted, err)
	}
}

func TestFilters(t *testing.T) {
	s := open(t, record(t, "a", midnight, 1), record(t, "a", midnight.Add(26*time.Hour), 2), record(t, "b", midnight, 4))
	if _, _, err := s.Rollup(context.Background(), midnight.AddDate(0, 0, 9)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*history.Rows)
		want   int64
	}{
		"all":              {func(*history.Rows) {}, 7},
		"a token":          {func(q *history.Rows) { q.Tokens = []token.ID{"a"} }, 3},
		"a resource":       {func(q *history.Rows) { q.Resources = []string{"other"} }, 0},
		"a day":            {func(q *history.Rows) { q.To = midnight.AddDate(0, 0, 1) }, 5},
		"hours":            {func(q *history.Rows) { q.Step = time.Hour }, 7},
		"the second day":   {func(q *history.Rows) { q.Step, q.From = 24*time.Hour, midnight.AddDate(0, 0, 1) }, 2},
		"after one minute": {func(q *history.Rows) { q.From = midnight.Add(time.Second) }, 2},
	} {
		q := all()
		c.change(&q)
		var sum int64
		var count int
		err := s.EachRows(context.Background(), q, func(rows []usage.Record) error {
			for _, r := range rows {
				sum += r.Admitted
				count++
			}
			return nil
		})
		if counted, countErr := s.CountRows(context.Background(), q); sum != c.want || err != nil || counted != int64(count) || countErr != nil {
			t.Errorf("%s: %d units in %d rows, %v, want %d; counted %d, %v", name, sum, count, err, c.want, counted, countErr)
		}
	}
	q := all()
	q.Step = time.Second
	if err := s.EachRows(context.Background(), q, func([]usage.Record) error { return nil }); !errors.Is(err, history.ErrSpan) {
		t.Errorf("rows by the second: %v", err)
	}
}

// failing breaks off on a day.
type failing struct {
	export.Source
	day time.Time
}

func (f failing) EachRows(ctx context.Context, q history.Rows, each func([]usage.Record) error) error {
	if q.From.Equal(f.day) {
		return errors.New("the connection broke")
	}
	return f.Source.EachRows(ctx, q, each)
}

func TestAFolderIsResumedWhereTheExportBrokeOff(t *testing.T) {
	s := open(t, record(t, "a", midnight, 1), record(t, "a", midnight.AddDate(0, 0, 1), 2), record(t, "a", midnight.AddDate(0, 0, 2), 4))
	folder := filepath.Join(t.TempDir(), "new", "folder")
	ctx, now := context.Background(), midnight.AddDate(0, 0, 2).Add(time.Hour)
	written, kept, err := export.ToFolder(ctx, folder, "csv", failing{s, midnight.AddDate(0, 0, 1)}, all(), now, none)
	if written != 1 || kept != 0 || err == nil {
		t.Fatalf("%d written, %d kept, %v", written, kept, err)
	}
	if files := list(t, folder); len(files) != 1 {
		t.Errorf("left behind: %q", files)
	}
	if written, kept, err = export.ToFolder(ctx, folder, "csv", s, all(), now, none); written != 2 || kept != 1 || err != nil {
		t.Errorf("resumed: %d written, %d kept, %v", written, kept, err)
	}
	if files, want := list(t, folder), []string{"usage-2025-02-20.csv", "usage-2025-02-21.csv", "usage-2025-02-22.csv"}; fmt.Sprint(files) != fmt.Sprint(want) {
		t.Errorf("files %q", files)
	}
	// The last day was not over: it is written again.
	if written, kept, err = export.ToFolder(ctx, folder, "csv", s, all(), now, none); written != 1 || kept != 2 || err != nil {
		t.Errorf("again: %d written, %d kept, %v", written, kept, err)
	}
}

func list(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
