"""From a certificate's subject to a principal, with the rules of Kafka's own SslPrincipalMapperTest."""

from __future__ import annotations

import pytest

from chronik.security.principals import MappingRules, NoRuleMatches, check_principal, distinguished_name

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("CN=duke,OU=ServiceUsers,O=Org,C=US", "User:duke"),
        ("CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "User:duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "User:DUKE@SME"),
        ("O=apache,CN=duke.kafka", "User:DUKE.KAFKA"),
        ("OU=JavaSoft,O=Sun Microsystems", "User:OU=JavaSoft,O=Sun Microsystems"),
    ],
)
def test_the_first_rule_that_matches_decides(name: str, principal: str) -> None:
    assert MappingRules(RULES).principal(name) == principal


def test_by_default_the_whole_name_is_the_user() -> None:
    assert MappingRules().principal("CN=a,O=b") == "User:CN=a,O=b"


def test_a_name_that_no_rule_matches_is_nobody() -> None:
    with pytest.raises(NoRuleMatches):
        MappingRules("RULE:^CN=(.*),O=x$/$1/").principal("CN=a,O=y")


def test_commas_and_slashes_within_a_rule() -> None:
    rules = MappingRules(r"RULE:^CN=(.*?)\/(.*?),O=(.{1,3})$/$1\/$2.$9/,DEFAULT")
    assert rules.principal("CN=a/b,O=cd") == "User:a/b.$9"
    assert rules.principal("CN=a/b,O=cdef") == "User:CN=a/b,O=cdef"


@pytest.mark.parametrize(
    "text",
    ["default", "DEFAUL", "RULE:^CN=(.*)$/$1", "RULE:(/x/", "RULE:a/b/X", "DEFAULT/L", r"RULE:(?=a)/b/"],
)
def test_rules_that_make_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        MappingRules(text)


def test_a_subject_is_written_as_java_writes_it() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "A, B + C"),),
        (("commonName", "#alice "),),
        (("emailAddress", "a@b"),),
    )
    expected = r"1.2.840.113549.1.9.1=#1603614062,CN=\#alice\ ,O=A\, B \+ C,C=DE"
    assert distinguished_name(subject) == expected


def test_principals_have_a_type_and_a_name() -> None:
    assert check_principal("User:a:b") == "User:a:b"
    for wrong in ("alice", "User:", ":alice", ""):
        with pytest.raises(ValueError, match="User:name"):
            check_principal(wrong)
