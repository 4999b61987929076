package dashboard

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/query"
)

// maxDownload bounds the rows of a list that is downloaded as CSV; whoever needs
// more exports the history.
const maxDownload = 10_000

// table is a CSV file.
type table struct {
	name   string // of the file, without .csv
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// download returns a handler that answers with what make returns.
func (d *Dashboard) download(build func(*request) (*table, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		r := d.newRequest(hr)
		if d.refuse(w, r, viewers) {
			return
		}
		err := r.setZone()
		var t *table
		if err == nil {
			t, err = build(r)
		}
		if err != nil {
			d.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "text/csv; charset=utf-8; header=present")
		w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="tallygate-%s.csv"`, t.name))
		out := csv.NewWriter(w)
		_ = out.Write(t.header)
		_ = out.WriteAll(t.rows) // the client has gone if this fails
	}
}

// cell keeps a spreadsheet from taking a caller's text for a formula.
func cell(s string) string {
	if strings.ContainsAny(s[:min(1, len(s))], "=+-@\t\r") {
		return "'" + s
	}
	return s
}

func stamp(unix int64) string {
	if unix == 0 {
		return ""
	}
	return time.Unix(unix, 0).UTC().Format(time.RFC3339)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func usageTable(name string, f *figures) *table {
	t := &table{name: name, header: []string{"start", "step_s", "admitted", "rejected", "refunded"}}
	for _, p := range f.Points {
		t.add(p.Start.UTC().Format(time.RFC3339), number(int64(f.Span.Step/time.Second)), number(p.Admitted), number(p.Rejected), number(p.Refunded))
	}
	return t
}

func (d *Dashboard) overviewCSV(r *request) (*table, error) {
	f, err := d.totalFigures(r)
	if err != nil {
		return nil, err
	}
	return usageTable("usage", f), nil
}

func (d *Dashboard) tokenCSV(r *request) (*table, error) {
	id, err := parseToken(r)
	if err != nil {
		return nil, err
	}
	f, err := d.tokenFigures(r, id)
	if err != nil {
		return nil, err
	}
	return usageTable("token-usage", f), nil
}

func (d *Dashboard) tokensCSV(r *request) (*table, error) {
	q, err := tokenQuery(r)
	if err != nil {
		return nil, err
	}
	q.Limit = query.MaxLimit
	t := &table{name: "tokens", header: []string{"token", "policy", "owner", "status", "admitted", "rejected", "refunded", "first", "last"}}
	for len(t.rows) < maxDownload {
		page, err := d.Search.Search(r.Context(), q, r.Now)
		if err != nil {
			return nil, err
		}
		for _, k := range page.Rows {
			t.add(cell(k.Token.Text()), cell(k.Policy), cell(k.Owner), k.Status,
				number(k.Ops), number(k.Rejected), number(k.Refunded), stamp(k.First), stamp(k.Last))
		}
		if page.Next == "" {
			break
		}
		q.After = page.Next
	}
	return t, nil
}

func (d *Dashboard) auditCSV(r *request) (*table, error) {
	page, err := eventPage(r)
	if err != nil {
		return nil, err
	}
	page.Limit = history.MaxPage
	t := &table{name: "audit", header: []string{"seq", "at", "kind", "token", "actor", "reason", "before", "after"}}
	for len(t.rows) < maxDownload {
		events, next, err := d.History.Events(r.Context(), page)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			t.add(number(e.Seq), time.UnixMilli(e.At).UTC().Format("2006-01-02T15:04:05.000Z"), cell(e.Kind), cell(e.Token.Text()),
				cell(e.Actor), cell(e.Reason), cell(string(e.Before)), cell(string(e.After)))
		}
		if next == "" {
			break
		}
		page.After = next
	}
	return t, nil
}
