package access

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"pipeline/gateway/internal/failure"
)

// mostLines a second are written; of what is beyond them the next line says how much it was.
const mostLines = 100

// audit writes who did what: a line of JSON each. nil writes nothing.
type audit struct {
	lock   sync.Mutex
	file   *os.File
	rate   *rate.Limiter
	missed int
}

func newAudit(path string) (*audit, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit_file: %w", err)
	}
	return &audit{file: file, rate: rate.NewLimiter(mostLines, mostLines)}, nil
}

// auditLine has no payload, query or credential.
type auditLine struct {
	Time    string `json:"time"`
	Caller  string `json:"caller"`
	Address string `json:"address"`
	Action  string `json:"action"`
	Role    Role   `json:"role"`
	Outcome string `json:"outcome"`
	Status  int    `json:"status,omitempty"`
	Missed  int    `json:"missed,omitempty"`
}

func (a *audit) write(asked *Asked, caller, outcome string, refused *failure.Error) {
	if a == nil {
		return
	}
	line := auditLine{Caller: caller, Address: asked.Address.Unmap().String(), Action: asked.Action, Role: asked.Role, Outcome: outcome}
	if refused != nil {
		line.Status = refused.Status
	}
	a.lock.Lock()
	defer a.lock.Unlock()
	if !a.rate.Allow() {
		a.missed++
		return
	}
	line.Time, line.Missed = time.Now().UTC().Format(time.RFC3339Nano), a.missed
	a.missed = 0
	data, _ := json.Marshal(line) // texts and numbers: it cannot fail
	_, _ = a.file.Write(append(data, '\n'))
}
