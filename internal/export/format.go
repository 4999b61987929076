// Package export writes usage as files for other programs: Parquet, CSV and JSON
// Lines, all with the same columns:
//
//	token     text, as callers present it
//	resource  text, "" is the default resource
//	start     when the row's minute, hour or day begins; UTC
//	admitted  units
//	rejected  units
//	refunded  units
//	last      last use within the row's time; absent when there was none; UTC
//
// DuckDB, pandas and Spark read them as they are: times are timestamps in UTC
// (ISO 8601 in text formats), figures are 64-bit integers. Memory is constant,
// however much is written. Who wants every record as it comes reads the bus
// instead: the Kafka topic is the other export.
package export

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Formats are the names that New knows; they are files' extensions as well.
var Formats = []string{"parquet", "csv", "jsonl"}

// Writer writes rows in one format. Close ends the format; it closes nothing else.
type Writer interface {
	Write(rows []usage.Record) error
	Close() error
}

// New returns a writer of the named format to w.
func New(format string, w io.Writer) (Writer, error) {
	switch format {
	case "parquet":
		return newParquet(w), nil
	case "csv":
		return newCSV(w)
	case "jsonl":
		b := bufio.NewWriter(w)
		e := json.NewEncoder(b)
		e.SetEscapeHTML(false)
		return &jsonLines{b, e}, nil
	}
	return nil, fmt.Errorf("%.32q is no format; there are parquet, csv and jsonl", format)
}

// row is a record as it is written.
type row struct {
	Token    string     `json:"token" parquet:"token,dict"`
	Resource string     `json:"resource" parquet:"resource,dict"`
	Start    time.Time  `json:"start" parquet:"start,timestamp(millisecond),delta"`
	Admitted int64      `json:"admitted" parquet:"admitted"`
	Rejected int64      `json:"rejected" parquet:"rejected"`
	Refunded int64      `json:"refunded" parquet:"refunded"`
	Last     *time.Time `json:"last,omitempty" parquet:"last,optional,timestamp(millisecond)"`
}

func newRow(r usage.Record) row {
	out := row{
		Token: r.Token.Text(), Resource: token.ResourceText(r.Resource), Start: time.Unix(r.Minute*60, 0).UTC(),
		Admitted: r.Admitted, Rejected: r.Rejected, Refunded: r.Refunded,
	}
	if r.Last > 0 {
		last := time.Unix(r.Last, 0).UTC()
		out.Last = &last
	}
	return out
}

// rowsPerGroup is the size of a Parquet row group: what a reader takes at once,
// and what the writer holds in memory.
const rowsPerGroup = 100_000

type parquetFile struct {
	w   *parquet.GenericWriter[row]
	buf []row
}

func newParquet(w io.Writer) *parquetFile {
	return &parquetFile{w: parquet.NewGenericWriter[row](w,
		parquet.MaxRowsPerRowGroup(rowsPerGroup), parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("tallygate", "", ""))}
}

func (p *parquetFile) Write(rows []usage.Record) error {
	p.buf = p.buf[:0]
	for _, r := range rows {
		p.buf = append(p.buf, newRow(r))
	}
	_, err := p.w.Write(p.buf)
	return err
}

func (p *parquetFile) Close() error { return p.w.Close() }

type csvFile struct{ w *csv.Writer }

func newCSV(w io.Writer) (*csvFile, error) {
	c := &csvFile{csv.NewWriter(w)}
	return c, c.w.Write([]string{"token", "resource", "start", "admitted", "rejected", "refunded", "last"})
}

func (c *csvFile) Write(rows []usage.Record) error {
	for _, r := range rows {
		out, last := newRow(r), ""
		if out.Last != nil {
			last = out.Last.Format(time.RFC3339)
		}
		number := func(n int64) string { return strconv.FormatInt(n, 10) }
		err := c.w.Write([]string{
			out.Token, out.Resource, out.Start.Format(time.RFC3339),
			number(out.Admitted), number(out.Rejected), number(out.Refunded), last,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *csvFile) Close() error {
	c.w.Flush()
	return c.w.Error()
}

type jsonLines struct {
	b *bufio.Writer
	e *json.Encoder
}

func (j *jsonLines) Write(rows []usage.Record) error {
	for _, r := range rows {
		if err := j.e.Encode(newRow(r)); err != nil {
			return err
		}
	}
	return nil
}

func (j *jsonLines) Close() error { return j.b.Flush() }
