package indexer

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// maxAhead is how far ahead of our clock a record's minute may be. Further on it
// is no clock that is a little fast but nonsense, for which no day is made room.
const maxAhead = 24 * time.Hour

// screen returns the batch without what no database would take. One such record
// would otherwise be tried again for ever, and everything behind it wait.
func (x *Indexer) screen(batch usage.Batch) usage.Batch {
	latest := x.now().Add(maxAhead).Unix() / 60
	var why error
	kept := usage.Batch{Records: make([]usage.Record, 0, len(batch.Records))}
	for _, r := range batch.Records {
		if err := checkRecord(r, latest); err != nil {
			why = err
			continue
		}
		kept.Records = append(kept.Records, r)
	}
	for _, e := range batch.Events {
		if err := checkEvent(e); err != nil {
			why = err
			continue
		}
		kept.Events = append(kept.Events, e)
	}
	refused := len(batch.Records) - len(kept.Records) + len(batch.Events) - len(kept.Events)
	if refused > 0 {
		x.metrics.refused.Add(float64(refused))
		x.opts.Log.Error("refused what no producer of ours sends; its units are not in the history", "refused", refused, "err", why)
	}
	return kept
}

func checkRecord(r usage.Record, latest int64) error {
	switch {
	case r.Token == "" || len(r.Token) > 3*token.MaxText || !storable(string(r.Token)):
		return errors.New("a record's token is no canonical ID")
	case len(r.Resource) > 3*token.MaxResource || !storable(r.Resource):
		return errors.New("a record's resource is not in canonical form")
	case r.Minute < 0 || r.Minute > latest:
		return fmt.Errorf("a record's minute is %d, the latest acceptable one is %d", r.Minute, latest)
	case r.Admitted < 0 || r.Rejected < 0 || r.Refunded < 0 || r.Last < 0:
		return errors.New("a record has negative units")
	case r.Last > (latest+1)*60:
		return fmt.Errorf("a record's last use is %d, which lies in the future", r.Last)
	}
	return nil
}

func checkEvent(e usage.Event) error {
	if e.ID == "" || e.Kind == "" {
		return errors.New("an event has no ID or no kind")
	}
	for _, s := range []string{e.ID, string(e.Token), e.Kind, e.Actor, e.Reason, string(e.Before), string(e.After)} {
		if !storable(s) {
			return errors.New("an event holds text that is not UTF-8 or has a NUL byte")
		}
	}
	return nil
}

// storable reports whether a text column takes s.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
