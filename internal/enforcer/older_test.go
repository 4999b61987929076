package enforcer_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/memory"
)

func TestOlderHeadersTellOfTheLimitThatMatters(t *testing.T) {
	const at = 1_767_225_600_000 - 10_250 // 10.25 s before an hour ends
	for style, want := range map[string]string{enforcer.ThreeRateLimit: "11", enforcer.XRateLimit: strconv.Itoa(1_767_225_600)} {
		store := memory.New(memory.Options{Now: func() int64 { return at }})
		mux := http.NewServeMux()
		enforcer.New(store, policies(), enforcer.Options{OlderHeaders: style}).Register(mux)
		prefix := map[string]string{enforcer.ThreeRateLimit: "RateLimit-", enforcer.XRateLimit: "X-RateLimit-"}[style]
		for _, remaining := range []string{"1", "1"} { // the second is refused, by the same limit
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/decide", strings.NewReader(`{"token":"T","cost":2}`)))
			h := w.Header()
			if h.Get(prefix+"Limit") != "3" || h.Get(prefix+"Remaining") != remaining || h.Get(prefix+"Reset") != want || h.Get("RateLimit") == "" {
				t.Errorf("%s: %v at %v", style, h, time.UnixMilli(at))
			}
		}
	}
}
