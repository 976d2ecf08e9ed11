"""Sessions and tokens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path as PathParameter
from fastapi import Request, Response

from app.api.access import Who, cookie_of, sent_token
from app.api.bodies import TokenBody, TokenWanted, parse
from app.api.errors import refusals
from app.api.services import ApiServices, ServicesDep
from app.api.strict import Cursor, Limit, api_router
from app.domain.terms import Principal, Scope
from app.service import access, queries
from app.service.allowances import allowance_of
from app.service.services import HttpProblem
from stagetree.models.service import NewToken, Session, TokenPage

router = api_router(tag="access")

Json = dict[str, Any]
SESSION: Json = {"response_model": Session, "response_model_exclude_unset": True, "responses": refusals()}
BROWSER_SECONDS = 30 * 86_400
TokenPath = Annotated[str, PathParameter(description="the name of a token", examples=["ci"])]


@router.get("/session", summary="Who you are here", **SESSION)
def get_session(who: Who, use: ServicesDep) -> Session:
    """Your name, scope and project, and the rest of your token's slot time."""
    return _session(use, who)


@router.post("/session", summary="Stay known to a browser", **SESSION)
def sign_in(request: Request, response: Response, use: ServicesDep, who: Who) -> Session:
    """Stores the request's token in a cookie that no script can read. The page does this once."""
    if token := sent_token(request.headers):
        response.set_cookie(
            cookie_of(request.headers),
            token,
            max_age=BROWSER_SECONDS,
            secure=request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https",
            httponly=True,
            samesite="strict",
        )
    return _session(use, who)


@router.delete("/session", status_code=204, summary="Be forgotten by a browser", responses=refusals())
def sign_out(request: Request, response: Response, who: Who) -> None:
    """Deletes the cookie. The token stays valid."""
    response.delete_cookie(cookie_of(request.headers), httponly=True, samesite="strict")


def _session(use: ApiServices, who: Principal) -> Session:
    session = Session.model_validate({"name": who.name, "scope": str(who.scope), "project": who.project})
    allowance = allowance_of(use, who)
    return session if allowance is None else session.with_fields(slot_seconds_left=allowance.left)


@router.get("/tokens", summary="List tokens", response_model=TokenPage, responses=refusals())
def list_tokens(use: ServicesDep, who: Who, limit: Limit = 100, cursor: Cursor = None) -> TokenPage:
    """All tokens by name. Expired and revoked ones are included, since their names are in the log."""
    return queries.tokens(use, limit, cursor, who)


@router.post(
    "/tokens",
    status_code=201,
    summary="Make a token",
    response_model=NewToken,
    response_description="The token; it is never shown again.",
    responses=refusals(400, 409, 413, 415),
)
def create_token(body: TokenBody, use: ServicesDep, who: Who) -> NewToken:
    """The name appears in the log from then on, so it is never reused."""
    wanted = parse(TokenWanted, body)
    if not who.can_see_all_of(wanted.project):
        raise HttpProblem(403, f"{who.name} makes tokens of the project {who.project!r} alone.")
    try:
        scope = Scope.parse(wanted.scope)
        budget = wanted.max_slot_seconds
        token = access.create(
            use.records, wanted.name, scope, wanted.project, wanted.days, use.clock(), max_slot_seconds=budget
        )
    except access.TokenRefused as problem:
        raise HttpProblem(409, f"{problem}.") from None
    return NewToken(token=token, name=wanted.name)


@router.delete("/tokens/{name}", status_code=204, summary="Revoke a token", responses=refusals(404))
def revoke_token(name: TokenPath, use: ServicesDep, who: Who) -> None:
    """The API refuses the token a few seconds later."""
    try:
        access.revoke(use.records, name, use.clock(), who)
    except access.TokenRefused as problem:
        raise HttpProblem(404, f"{problem}.") from None
